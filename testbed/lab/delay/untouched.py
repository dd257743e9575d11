"""Lets frames pass the middle of a link untouched, until it is to delay or to lose some.

The kernel hands what arrives at one inner end to the other one, which takes it some microseconds. A
relay that takes over a direction gets the frames through a pair of interfaces of its own. The
filter that leads there comes before the earlier one: from one frame to the next the relay has them,
and none is lost, doubled or overtaken by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from testbed.lab.delay.delay_settings import Middle
from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.rtnetlink import Rtnetlink, bring_up_silent


def redirection(source: str, sink: str) -> list[str]:
    """The commands of tc that make all frames that arrive at `source` leave by `sink`."""
    # u32 with a mask of nothing: every protocol, and no need for the matchall module.
    return [
        f"qdisc add dev {source} ingress",
        f"filter add dev {source} parent ffff: protocol all u32 match u32 0 0 "
        f"action mirred egress redirect dev {sink}",
    ]


def join(middles: Sequence[Middle]) -> None:
    """Let frames pass these middles in both directions, by one call of tc.

    Raises:
        CommandError: the kernel refuses.
    """
    ends = [each.interfaces for each in middles]
    lines = [line for a, b in ends for way in ((a, b), (b, a)) for line in redirection(*way)]
    if lines:
        run(["tc", "-batch", "-"], input_text="".join(f"{line}\n" for line in lines))


@contextmanager
def diverted(middle: Middle, sender: str) -> Iterator[str]:
    """Take the frames of one direction out of it, once the body has somebody wait for them.

    Yields:
        The interface at which they arrive from then on.

    Raises:
        CommandError: the kernel refuses.
    """
    source = middle.interfaces[middle.nodes.index(sender)]
    near, far = f"{source}-out", f"{source}-in"
    with Rtnetlink() as kernel:
        kernel.send([rtnetlink.veth(near, far)])
    try:
        for end in (near, far):
            bring_up_silent(end)
        yield far
        _, leading_there = redirection(source, near)
        run(["tc", *leading_there.split()])
    except BaseException:
        run(["ip", "link", "delete", near])
        raise
