"""Sets the TCP congestion control of all connections of a host, from outside.

The host's routes say it (`congctl`): the kernel lets a namespace's own default be only what the
administrator allows. A route counts for accepted connections too, and more than a program's wish.
"""

from __future__ import annotations

from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.shaping import inside

_KEY = "congctl"


def set_for(pid: int, congestion_control: str | None) -> None:
    """Let all new IPv4 connections of a host use one congestion control, and read it back."""
    wanted = [] if congestion_control is None else [_KEY, congestion_control]
    for route in _routes(pid):
        run([*inside(pid), "ip", "route", "change", *_without_control(route), *wanted])
    for route in _routes(pid):
        if route != [*_without_control(route), *wanted]:
            raise CommandError(f"{' '.join(route)}: {congestion_control} is not in force")


def _routes(pid: int) -> list[list[str]]:
    shown = run([*inside(pid), "ip", "-4", "route", "show"])
    return [[word for word in line.split() if word != "linkdown"] for line in shown.splitlines()]


def _without_control(route: list[str]) -> list[str]:
    place = route.index(_KEY) if _KEY in route else len(route)
    return route[:place] + route[place + 2 :]
