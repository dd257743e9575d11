"""Where each rank is, and how it proves who it is: what all ranks tell each other at the start."""

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

import torch

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
        self._folder = TemporaryDirectory(prefix="bounded-loss-")
        self._at = Path(self._folder.name)

    def make_keys(self) -> None:
        """InputError where the program openssl is missing."""
        keys.make(self._at, [SERVER, name_of(self._rank)])

    def certificates(self) -> dict[str, str]:
        """For the others: of this rank as an owner and as a worker, as PEM texts."""
        names = (SERVER, name_of(self._rank))
        return {name: (self._at / f"{name}.crt").read_text() for name in names}

    def meet(self, certificates: list[Mapping[str, str]]) -> None:
        """Keeps all ranks' certificates."""
        for rank, theirs in enumerate(certificates):
            (self._at / str(rank)).mkdir()
            for name in (SERVER, name_of(rank)):
                (self._at / str(rank) / f"{name}.crt").write_text(theirs[name])

    def credentials(self, owner: int, world: int) -> Credentials:
        """For the exchange with one owner: its own as the server, or a worker's."""
        if owner == self._rank:
            name = SERVER
            others = [rank for rank in range(world) if rank != owner]
            trusted = [self._at / str(rank) / f"{name_of(rank)}.crt" for rank in others]
        else:
            name = name_of(self._rank)
            trusted = [self._at / str(owner) / f"{SERVER}.crt"]
        return Credentials(self._at / f"{name}.crt", self._at / f"{name}.key", tuple(trusted))

    def close(self) -> None:
        """Deletes the keys."""
        self._folder.cleanup()


@dataclass(frozen=True)
class Places:
    """What is known of all ranks."""

    addresses: list[str]  # by rank
    session: int  # a number that all ranks share and nobody else knows
    identity: Identity | None  # None where no address is beyond this machine, or `insecure`
    chunk_bytes: int  # what a datagram carries on all paths

    @property
    def inside(self) -> bool:
        """Whether all ranks are on this machine."""
        return all(map(is_loopback, self.addresses))

    def credentials(self, owner: int) -> Credentials | None:
        """For the exchange with one owner."""
        if self.identity is None:
            return None
        return self.identity.credentials(owner, len(self.addresses))

    def close(self) -> None:
        if self.identity is not None:
            self.identity.close()


def find(settings: Settings, rendezvous: Rendezvous) -> Places:
    """Meets all ranks; InputError, the same line on all, where they differ or one cannot."""
    me: dict[str, Any] = {}
    problem = ""
    try:
        me["terms"] = settings.terms(torch.__version__)
        me["session"] = secrets.randbits(32)
        me["address"] = own_address(settings.interface)
    except InputError as error:
        problem = str(error)
    met = rendezvous.share("the meeting of all ranks", me, problem)
    if (differs := difference([each["terms"] for each in met])) is not None:
        raise InputError(differs)
    all_addresses = [each["address"] for each in met]
    require_reachable(all_addresses)
    inside = all(map(is_loopback, all_addresses))
    if settings.protocol.carrier == "tcp" and not (inside or settings.insecure):
        raise InputError(
            "the protocol tcp sends gradients that anybody on the way could change; valid: another "
            "protocol, or insecure=True where nobody else is on the network"
        )

    mine, identity = all_addresses[rendezvous.rank], None
    try:
        if not (inside or settings.insecure):
            identity = Identity(rendezvous.rank)
            identity.make_keys()
        if settings.port is not None:
            port, data_port = _own_ports(settings.port, all_addresses, rendezvous.rank)
            check_free(mine, port, 1)
            check_free(mine, data_port, rendezvous.world - 1)
    except InputError as error:
        problem = str(error)
    certificates = identity.certificates() if identity is not None else {}
    me = {"keys": certificates, "chunk_bytes": _fitting(mine, all_addresses)}
    told = rendezvous.share("the sharing of keys", me, problem)
    if identity is not None:
        identity.meet([each["keys"] for each in told])
    chunk_bytes = settings.chunk_bytes or min(each["chunk_bytes"] for each in told)
    return Places(all_addresses, met[0]["session"], identity, chunk_bytes)


def _own_ports(first: int, all_addresses: list[str], rank: int) -> tuple[int, int]:
    """A rank's port for control messages and its first one for data, where all begin at `first`."""
    # Ranks of one machine share it. Those for data follow each other, for filters.
    mine, others = all_addresses[rank], len(all_addresses) - 1
    here, number = all_addresses.count(mine), all_addresses[:rank].count(mine)
    return first + number, first + here + number * others


@dataclass(frozen=True)
class Ports:
    """By rank: its port for control messages, and the first of its ports for data."""

    control: list[int]
    data: list[int]


def find_ports(settings: Settings, rendezvous: Rendezvous, places: Places, session: int) -> Ports:
    """All ranks' ports, to be used at once; raises what `Rendezvous.share` does."""
    with ExitStack() as held:
        port, data_port, problem = 0, 0, ""
        try:
            if settings.port is None:
                mine = places.addresses[rendezvous.rank]
                port = held.enter_context(free_ports(mine, rendezvous.world))
                data_port = port + 1
            else:
                port, data_port = _own_ports(settings.port, places.addresses, rendezvous.rank)
        except InputError as error:
            problem = str(error)
        # Held until all ranks have theirs. Not for longer: processes that a data loader forks
        # meanwhile would hold them on.
        facts = {"port": port, "data_port": data_port}
        told = rendezvous.share(f"the sharing of ports for session {session}", facts, problem)
    return Ports([each["port"] for each in told], [each["data_port"] for each in told])


def _fitting(mine: str, all_addresses: list[str]) -> int:
    """The largest chunk that fits the MTU of this rank's paths."""
    here, *others = (resolve(each, what="an address") for each in (mine, *all_addresses))
    known = [path_mtu_bytes(here, other) for other in others]
    mtu_bytes = min((each for each in known if each is not None), default=_ETHERNET_MTU_BYTES)
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


def require_reachable(addresses: list[str]) -> None:
    """InputError where some ranks name an address that only their own machine can reach."""
    inside = [rank for rank, address in enumerate(addresses) if is_loopback(address)]
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
