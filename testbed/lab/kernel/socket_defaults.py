"""Sets the defaults of a host's sockets: their local ports, and TCP's congestion control."""

from __future__ import annotations

from pathlib import Path

from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.namespaces import entered
from testbed.lab.kernel.shaping import inside

_RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_CHOSEN_FROM = Path("/proc/sys/net/ipv4/ip_local_port_range")
LEAST_TIMEOUT = Path("/proc/sys/net/ipv4/tcp_rto_min_us")  # since Linux 6.11
_SLOW_START_AFTER_IDLE = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
_KEY = "congctl"


def reserve_ports(pid: int | None, first: int, last: int) -> None:
    """Let no socket of a namespace get a port from `first` to `last` that it did not ask for."""
    # Connections that name no port would otherwise lie there by chance, and meet loss that spares
    # all other ports. Where the range holds all ports that the kernel gives, nothing is reserved:
    # no socket would get any. The kernel shows a range of one as that one.
    ports = f"{first}-{last}" if first < last else f"{first}"
    with entered(pid):
        try:
            lowest, highest = map(int, _CHOSEN_FROM.read_text().split())
            if first <= lowest and highest <= last:
                return
            _RESERVED.write_text(ports)
            reserved = _RESERVED.read_text().strip()
        except OSError as error:
            raise CommandError(f"{_RESERVED}: {error.strerror}") from error
    if reserved != ports:
        raise CommandError(f"{_RESERVED}: {reserved!r} and not {ports!r} are reserved")


def set_least_timeout(pid: int, least_s: float) -> None:
    """Let no TCP connection of a namespace send again before so long; CommandError.

    Windows stay over idle times: Linux shrinks them after as many timeouts, so one of milliseconds
    would cost a slow start in each round.
    """
    with entered(pid):
        for path, value in ((LEAST_TIMEOUT, round(1e6 * least_s)), (_SLOW_START_AFTER_IDLE, 0)):
            try:
                path.write_text(f"{value}")
            except OSError as error:
                raise CommandError(f"{path}: {error.strerror}") from error


def set_congestion_control(pid: int, congestion_control: str) -> None:
    """Let all new IPv4 connections of a host use one congestion control, and read it back."""
    # The routes say it: a namespace's own default can only be what the administrator allows. A
    # route counts for accepted connections too, and more than what a program asks for.
    option = [_KEY, congestion_control]
    for route in _routes(pid):
        run([*inside(pid), "ip", "route", "change", *_without_control(route), *option])
    for route in _routes(pid):
        if route != [*_without_control(route), *option]:
            raise CommandError(f"{' '.join(route)}: {congestion_control} is not in force")


def _routes(pid: int) -> list[list[str]]:
    shown = run([*inside(pid), "ip", "-4", "route", "show"])
    return [[word for word in line.split() if word != "linkdown"] for line in shown.splitlines()]


def _without_control(route: list[str]) -> list[str]:
    place = route.index(_KEY) if _KEY in route else len(route)
    return route[:place] + route[place + 2 :]
