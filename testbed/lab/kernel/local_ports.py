"""Keeps the ports that the kernel gives to sockets by itself out of a range."""

from __future__ import annotations

from pathlib import Path

from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.namespaces import entered

_RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_CHOSEN_FROM = Path("/proc/sys/net/ipv4/ip_local_port_range")


def reserve(pid: int | None, first: int, last: int) -> None:
    """Let no socket of a namespace get a port from `first` to `last` that it did not ask for."""
    # Connections that name no port would otherwise lie there by chance, and meet loss that spares
    # all other ports. Where the range holds all ports that the kernel gives, nothing is reserved:
    # no socket would get any. The kernel shows a range of one as that one.
    wanted = f"{first}-{last}" if first < last else f"{first}"
    with entered(pid):
        try:
            lowest, highest = map(int, _CHOSEN_FROM.read_text().split())
            if first <= lowest and highest <= last:
                return
            _RESERVED.write_text(wanted)
            found = _RESERVED.read_text().strip()
        except OSError as error:
            raise CommandError(f"{_RESERVED}: {error.strerror}") from error
    if found != wanted:
        raise CommandError(f"{_RESERVED}: {found!r} and not {wanted!r} are reserved")
