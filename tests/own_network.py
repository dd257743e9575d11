"""Runs a script in a network namespace of its own, and makes interfaces for it there."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.rtnetlink import Rtnetlink, bring_up_silent


def printed(script: str, *arguments: str, before: Sequence[str] = ("unshare", "-n")) -> Any:
    """What it prints, as JSON; `before` are the words that make the namespace."""
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
