"""This rank's address and ports."""

import errno
import fcntl
import ipaddress
import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from testbed.shared.input_error import InputError, shown

_SIOCGIFADDR = 0x8915  # from <linux/sockios.h>
_NAME_BYTES = 16
# Below the ports that Linux gives to connections of its own (net.ipv4.ip_local_port_range).
_FREE = range(20_000, 32_000)
_TRIES = 100
# Draws of its own: scripts seed Python's alike on all ranks, and expect their numbers from it.
_DRAWS = random.SystemRandom()


def own_address(interface: str | None) -> str:
    """The IPv4 address by which other ranks reach this one."""
    named = interface or os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if named:
        return _address_of(named)
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, 9))  # sends nothing
        except OSError as error:
            raise InputError(
                f"MASTER_ADDR is {shown(master)}, which cannot be reached over IPv4: "
                f"{error.strerror or error}; name an interface"
            ) from None
        return str(probe.getsockname()[0])


def _address_of(interface: str) -> str:
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise InputError(f"interface is {shown(interface)}; valid: {', '.join(sorted(names))}")
    request = struct.pack("256s", interface.encode()[: _NAME_BYTES - 1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        except OSError:
            raise InputError(
                f"interface {interface!r} has no IPv4 address; valid: one that has"
            ) from None
    return socket.inet_ntoa(answer[20:24])


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def require_reachable(addresses: list[str]) -> None:
    """InputError where some ranks name an address that only their own machine can reach."""
    inside = [rank for rank, each in enumerate(addresses) if is_loopback(each)]
    if inside and len(inside) != len(addresses):
        raise InputError(
            f"rank {inside[0]} has the address {addresses[inside[0]]}, which other machines cannot "
            "reach; name its interface (interface=, or GLOO_SOCKET_IFNAME)"
        )


@contextmanager
def free_ports(address: str, count: int) -> Iterator[int]:
    """The first of `count` ports in a row, TCP and UDP, that nobody else can take meanwhile."""
    for _ in range(_TRIES):
        first = _DRAWS.choice(_FREE)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                        # Without SO_REUSEADDR, which would let another rank hold the same port.
                        holder = held.enter_context(socket.socket(socket.AF_INET, kind))
                        holder.bind((address, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise InputError(_unfit(address, port, error)) from None
            yield first
            return
    raise InputError(f"no {count} free ports in a row from {_FREE.start} to {_FREE.stop}")


def check_free(address: str, first: int, count: int) -> None:
    """InputError, which names the port, where one of `count` ports in a row is taken."""
    if first + count - 1 > 65535:
        raise InputError(f"port is {first}, and {count} are needed; valid: up to {65536 - count}")
    for port in range(first, first + count):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, kind == socket.SOCK_STREAM)
                try:
                    probe.bind((address, port))
                    if kind == socket.SOCK_STREAM:
                        probe.listen(1)
                except OSError as error:
                    raise InputError(_unfit(address, port, error)) from None


def _unfit(address: str, port: int, error: OSError) -> str:
    taken = error.errno == errno.EADDRINUSE
    why = "is taken" if taken else f"cannot be used: {error.strerror}"
    return f"port {port} of {address} {why}; valid: a free one"
