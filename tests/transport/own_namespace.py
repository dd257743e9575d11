"""Runs functions of tests in a network namespace of its own, where packets may be dropped."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.namespaces import hold
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shaping import inside

_PROGRAM = """
import importlib, json, sys
module, function, arguments = sys.argv[1:]
print(json.dumps(getattr(importlib.import_module(module), function)(*json.loads(arguments))))
"""


def alone(function: Callable[..., Any], *arguments: Any, timeout_s: float = 120.0) -> Any:
    """What the function returns there, as JSON; skips without such a namespace, or nft in it."""
    namespace = ["unshare", "--user", "--map-root-user", "--net"]
    if os.geteuid() == 0:
        namespace = ["unshare", "--net"]
    # Also brings the loopback up, which is down in a new one.
    prepare = [*namespace, "sh", "-c", 'nft list ruleset && ip link set lo up && exec "$@"', "-"]
    if subprocess.run([*prepare, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs '{' '.join(namespace)}', nft and ip")
    words = function.__module__, function.__name__, json.dumps(arguments)
    done = subprocess.run(
        [*prepare, sys.executable, "-c", _PROGRAM, *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def drop(*matches: str, pid: int | None = None) -> None:
    """Drops what comes and matches, in the words of nft; `pid`: in the namespace of that one."""
    lines = (
        "add table inet hole",
        "add chain inet hole input { type filter hook input priority 0; }",
        *(f"add rule inet hole input {match} drop" for match in matches),
    )
    run([*inside(pid), "nft", "-f", "-"], input_text="\n".join(lines))


def neighbour(near: str, far: str) -> int:
    """A second namespace's holder; interfaces `near`, here, and `far` have these addresses."""
    other = hold("far")
    with Rtnetlink() as kernel:
        kernel.send([rtnetlink.veth("near", "far", peer_pid=other)])
    for pid, name, address in ((None, "near", near), (other, "far", far)):
        with Rtnetlink(pid) as kernel:
            index = kernel.index(name)
            kernel.send([rtnetlink.up(index), rtnetlink.address(index, f"{address}/24")])
    return other
