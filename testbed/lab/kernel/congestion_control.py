"""Sets the TCP congestion control of all connections of a host, from outside.

The host's routes say it (`congctl`): the kernel lets a namespace's own default be only what the
machine's administrator allows for everybody. A route counts for accepted connections as well, and
more than what a program asks for.
"""

from __future__ import annotations

from testbed.lab.kernel.commands import run
from testbed.lab.kernel.shaping import inside


def set_for(pid: int, congestion_control: str) -> None:
    """Let all new IPv4 connections of a host use one congestion control.

    Args:
        pid: a process in the host's network namespace.
        congestion_control: the kernel's name of it.

    Raises:
        CommandError: the kernel refuses it.
    """
    for route in run([*inside(pid), "ip", "-4", "route", "show"]).splitlines():
        words = [each for each in route.split() if each != "linkdown"]
        run([*inside(pid), "ip", "route", "change", *words, "congctl", congestion_control])
