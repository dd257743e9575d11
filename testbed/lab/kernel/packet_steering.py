"""Receive packet steering (RPS): one processor receives all frames of an interface, in order.

A veth pair queues each frame at the processor that sent it, and a shaped link sends from whichever
its timer fires on: when one processor is held up, a frame that waits at another overtakes.
"""

# Only root of the initial user namespace may set it. It costs processor time (at 180 Mbit/s two
# processors idled for 4 % instead of 12 %), so labs without netem do without: no packet was seen to
# overtake there.

from __future__ import annotations

import os
from collections.abc import Iterable

from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.shaping import inside

# /sys shows the interfaces of the namespace that it was mounted in.
_WRITE = """mount -t sysfs sysfs /sys && while [ $# -gt 0 ]; do
  echo "$1" > "/sys/class/net/$2/queues/rx-0/rps_cpus" || exit 1; shift 2
done"""


def set_rps(interfaces: Iterable[tuple[int | None, str]]) -> bool:
    """Give each interface (a process in its namespace, its name) one receiving processor."""
    # False where this user may not, or the kernel was built without RPS.
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) == 1:
        return True
    by_namespace: dict[int | None, list[str]] = {}
    for number, (pid, name) in enumerate(interfaces):
        mask = _mask(processors[number % len(processors)])
        by_namespace.setdefault(pid, []).extend((mask, name))
    try:
        for pid, words in by_namespace.items():
            run([*inside(pid), "unshare", "--mount", "sh", "-c", _WRITE, "-", *words])
    except CommandError:
        return False
    return True


def _mask(processor: int) -> str:
    """A set of one processor as sysfs reads it: words of 32 bits in hexadecimal."""
    words = [0] * (processor // 32 + 1)
    words[0] = 1 << processor % 32
    return ",".join(f"{word:08x}" for word in words)
