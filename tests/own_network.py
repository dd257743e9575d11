"""Runs scripts and functions in a network namespace of their own, and makes its interfaces."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.rtnetlink import Rtnetlink, bring_up_silent
from testbed.lab.kernel.shaping import inside


def printed(script: str, *arguments: str, before: Sequence[str] = ("unshare", "-n")) -> Any:
    """It returns what a script prints, as JSON; `before` are the words that make the namespace."""
    argv = [*before, sys.executable, "-c", script, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def join(*pairs: tuple[str, str]) -> None:
    """In a script: make pairs of joined interfaces that send nothing of their own accord."""
    with Rtnetlink() as kernel:
        kernel.send([rtnetlink.veth(*pair) for pair in pairs])
    for end in (end for pair in pairs for end in pair):
        bring_up_silent(end)


def wire(interface: str) -> socket.socket:
    """In a script: what it is sent goes to an interface as a frame."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    opened.bind((interface, 0))
    return opened


def queue_statistics(interface: str, pid: int | None = None) -> list[dict[str, Any]]:
    """The kernel's counters of an interface's queueing disciplines, as `tc -s -j` has them."""
    text = run([*inside(pid), "tc", "-s", "-j", "qdisc", "show", "dev", interface])
    return list(json.loads(text))


_PROGRAM = """
import importlib, json, sys
module, function, arguments = sys.argv[1:]
print(json.dumps(getattr(importlib.import_module(module), function)(*json.loads(arguments))))
"""


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """It returns the function's result there, as JSON; it skips without such a namespace or nft."""
    namespace = ["unshare", "--user", "--map-root-user", "--net"]
    if os.geteuid() == 0:
        namespace = ["unshare", "--net"]
    # Also brings the loopback up, which is down in a new one.
    prepare = [*namespace, "sh", "-c", 'nft list ruleset && ip link set lo up && exec "$@"', "-"]
    if subprocess.run([*prepare, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs '{' '.join(namespace)}', nft and ip")
    words = function.__module__, function.__name__, json.dumps(arguments)
    return printed(_PROGRAM, *words, before=prepare)


def drop(*matches: str) -> None:
    """Drops what comes and matches, in the words of nft."""
    lines = (
        "add table inet hole",
        "add chain inet hole input { type filter hook input priority 0; }",
        *(f"add rule inet hole input {match} drop" for match in matches),
    )
    run(["nft", "-f", "-"], input_text="\n".join(lines))
