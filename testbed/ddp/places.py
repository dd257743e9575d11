"""Where each rank is, and how it proves who it is: all ranks share this at the start."""

import errno
import fcntl
import ipaddress
import os
import random
import secrets
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from testbed.ddp.endpoint_thread import SERVER, name_of
from testbed.ddp.rendezvous import Rendezvous
from testbed.ddp.settings import Settings, difference
from testbed.shared.input_error import InputError, shown
from testbed.transport import Credentials
from testbed.transport.net import keys
from testbed.transport.net.addresses import largest_chunk_bytes, path_mtu_bytes, resolve
from testbed.transport.net.tls import TAG_BYTES

_SIOCGIFADDR = 0x8915  # from <linux/sockios.h>
_NAME_BYTES = 16
# Below the ports that Linux gives to connections of its own (net.ipv4.ip_local_port_range).
_FREE = range(20_000, 32_000)
_TRIES = 100
# Draws of its own: scripts seed Python's alike on all ranks, and expect their numbers from it.
_DRAWS = random.SystemRandom()
_ETHERNET_MTU_BYTES = 1500
# Loopback would take larger ones, but a chunk is what one loss costs.
_MOST_CHUNK_BYTES = 32_000


class Identity:
    """This rank's keys and the others' certificates, in a private folder."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._temporary = TemporaryDirectory(prefix="bounded-loss-")
        self.folder = Path(self._temporary.name)

    def make_keys(self) -> None:
        """InputError where the program openssl is missing."""
        keys.make(self.folder, [SERVER, name_of(self._rank)])

    def certificates(self) -> dict[str, str]:
        """Returns this rank's, as an owner and as a worker, as PEM texts."""
        names = (SERVER, name_of(self._rank))
        return {name: (self.folder / f"{name}.crt").read_text() for name in names}

    def meet(self, certificates: list[Mapping[str, str]]) -> None:
        """Keeps all ranks' certificates."""
        for rank, theirs in enumerate(certificates):
            (self.folder / str(rank)).mkdir()
            for name in (SERVER, name_of(rank)):
                (self.folder / str(rank) / f"{name}.crt").write_text(theirs[name])

    def credentials(self, owner: int, world: int) -> Credentials:
        """Returns those for the exchange with one owner."""
        if owner == self._rank:
            name = SERVER
            others = [rank for rank in range(world) if rank != owner]
            trusted = [self.folder / str(rank) / f"{name_of(rank)}.crt" for rank in others]
        else:
            name = name_of(self._rank)
            trusted = [self.folder / str(owner) / f"{SERVER}.crt"]
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        return Credentials(certificate, key, tuple(trusted))

    def close(self) -> None:
        """Deletes the keys."""
        self._temporary.cleanup()


@dataclass(frozen=True)
class Places:
    """Where all ranks are, and how they prove who they are."""

    addresses: list[str]  # by rank
    session: int  # a number that all ranks share and nobody else knows
    identity: Identity | None  # None where no address is beyond this machine, or `insecure`
    chunk_bytes: int  # what a datagram carries on all paths


def find(settings: Settings, rendezvous: Rendezvous) -> Places:
    """Meets all ranks; InputError, the same line on all, where they differ or one cannot."""
    facts: dict[str, Any] = {"terms": settings.terms(), "session": secrets.randbits(32)}
    problem = ""
    try:
        facts["address"] = own_address(settings.interface)
    except InputError as error:
        problem = str(error)
    ranks = rendezvous.share("the meeting of all ranks", facts, problem)
    if (differs := difference([rank["terms"] for rank in ranks])) is not None:
        raise InputError(differs)
    addresses = [rank["address"] for rank in ranks]
    require_reachable(addresses)
    one_machine = on_one_machine(addresses)
    if settings.protocol_config.carrier == "tcp" and not (one_machine or settings.insecure):
        raise InputError(
            "the protocol tcp sends gradients that anybody on the way could change; valid: another "
            "protocol, or insecure=True where nobody else is on the network"
        )

    own, identity = addresses[rendezvous.rank], None
    try:
        if not (one_machine or settings.insecure):
            identity = Identity(rendezvous.rank)
            identity.make_keys()
        if settings.port is not None:
            control_port, data_port = _fixed_ports(settings.port, addresses, rendezvous.rank)
            check_free(own, control_port, 1)
            check_free(own, data_port, rendezvous.world - 1)
    except InputError as error:
        problem = str(error)
    certificates = identity.certificates() if identity is not None and not problem else {}
    facts = {"certificates": certificates, "chunk_bytes": _fitting(own, addresses)}
    shared = rendezvous.share("the sharing of keys", facts, problem)
    if identity is not None:
        identity.meet([rank["certificates"] for rank in shared])
    chunk_bytes = settings.chunk_bytes or min(rank["chunk_bytes"] for rank in shared)
    return Places(addresses, ranks[0]["session"], identity, chunk_bytes)


def _fixed_ports(first: int, addresses: list[str], rank: int) -> tuple[int, int]:
    """A rank's port for control messages and its first one for data, where all begin at `first`."""
    # Ranks of one machine share it. Those for data follow each other, for filters.
    own, others = addresses[rank], len(addresses) - 1
    here, number = addresses.count(own), addresses[:rank].count(own)
    return first + number, first + here + number * others


def find_ports(
    settings: Settings, rendezvous: Rendezvous, addresses: list[str], session: int
) -> tuple[list[int], list[int]]:
    """Returns each rank's port for control messages, and the first of its ports for data.

    They are to be used at once. Raises what `Rendezvous.share` does.
    """
    with ExitStack() as held:
        control_port, data_port, problem = 0, 0, ""
        try:
            if settings.port is None:
                own = addresses[rendezvous.rank]
                control_port = held.enter_context(free_ports(own, rendezvous.world))
                data_port = control_port + 1
            else:
                control_port, data_port = _fixed_ports(settings.port, addresses, rendezvous.rank)
        except InputError as error:
            problem = str(error)
        # Held until all ranks have theirs. Not for longer: processes that a data loader forks
        # meanwhile would hold them on.
        facts = {"control_port": control_port, "data_port": data_port}
        ranks = rendezvous.share(f"the sharing of ports for session {session}", facts, problem)
    return [rank["control_port"] for rank in ranks], [rank["data_port"] for rank in ranks]


def _fitting(own: str, addresses: list[str]) -> int:
    """Returns the largest chunk that fits the MTU of this rank's paths."""
    here, *others = (resolve(address, what="an address") for address in (own, *addresses))
    mtus_bytes = (path_mtu_bytes(here, other) for other in others)
    mtu_bytes = min(filter(None, mtus_bytes), default=_ETHERNET_MTU_BYTES)
    fitting = largest_chunk_bytes(mtu_bytes, trailer_bytes=TAG_BYTES)
    return min(fitting, _MOST_CHUNK_BYTES)


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


def on_one_machine(addresses: list[str]) -> bool:
    return all(map(is_loopback, addresses))


def require_reachable(addresses: list[str]) -> None:
    """InputError where some ranks name an address that only their own machine can reach."""
    inside = [rank for rank, address in enumerate(addresses) if is_loopback(address)]
    if inside and len(inside) != len(addresses):
        raise InputError(
            f"rank {inside[0]} has the address {addresses[inside[0]]}, which other machines cannot "
            "reach; name its interface (interface=, or GLOO_SOCKET_IFNAME)"
        )


def _held(address: str, first: int, count: int) -> ExitStack:
    """Takes `count` ports in a row, TCP and UDP; OSError, which names the port, for a taken one."""
    with ExitStack() as held:
        for port in range(first, first + count):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                holder = held.enter_context(socket.socket(socket.AF_INET, kind))
                # A connection that has ended a moment ago does not count. Of two that take a
                # TCP port at once, one alone can listen.
                tcp = kind == socket.SOCK_STREAM
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, tcp)
                try:
                    holder.bind((address, port))
                    if tcp:
                        holder.listen(1)
                except OSError as error:
                    error.filename = port
                    raise
        return held.pop_all()


@contextmanager
def free_ports(address: str, count: int) -> Iterator[int]:
    """Yields the first of `count` ports in a row that nobody else can take meanwhile."""
    for _ in range(_TRIES):
        first = _DRAWS.choice(_FREE)
        try:
            held = _held(address, first, count)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise InputError(_unfit(address, error)) from None
        with held:
            yield first
        return
    raise InputError(f"no {count} free ports in a row from {_FREE.start} to {_FREE.stop}")


def check_free(address: str, first: int, count: int) -> None:
    """InputError, which names the port, where one of `count` ports in a row is taken."""
    if first + count - 1 > 65535:
        raise InputError(f"port is {first}, and {count} are needed; valid: up to {65536 - count}")
    try:
        _held(address, first, count).close()
    except OSError as error:
        raise InputError(_unfit(address, error)) from None


def _unfit(address: str, error: OSError) -> str:
    taken = error.errno == errno.EADDRINUSE
    why = "is taken" if taken else f"cannot be used: {error.strerror}"
    return f"port {error.filename} of {address} {why}; valid: a free one"
