"""All ranks meet: through a store, with their addresses, ports and keys.

The store is that of the process group, which torchrun has made. It is trusted: who can write to it
can pose as any rank. All values in it are JSON.
"""

import errno
import fcntl
import ipaddress
import json
import os
import random
import re
import secrets
import shutil
import socket
import struct
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from testbed.ddp.endpoint_thread import SERVER, name_of
from testbed.ddp.settings import Settings, require_equal
from testbed.shared.input_error import InputError, shown
from testbed.transport import Credentials, PeerLost
from testbed.transport.net import keys
from testbed.transport.net.addresses import largest_chunk_bytes, path_mtu_bytes, resolve
from testbed.transport.net.tls import TAG_BYTES
from testbed.transport.wire import DEFAULT_CHUNK_BYTES

# The peer that is lost where no rank can be named.
STORE = "the process group's store"
_FAILURE = "failure"
# The pauses between two polls of the store.
_SHORTEST_S, _LONGEST_S = 0.001, 0.1
_MOMENT_S = 0.5
# A store whose machine has fallen silent never answers, and most calls know no timeout.
_SILENT_S = 30.0
_REPORT_S = 2.0
T = TypeVar("T")
# Words of the transport for a connection that the other side has ended.
_ENDED = ("closed", "reset", "gave up")
# The number of exchanges of each group in this process. All ranks make theirs in the same order.
_exchanges: Counter[str] = Counter()
# By the fixed port: what lies beyond the ports of each open exchange in this process.
_beyond: dict[int, dict["Rendezvous", tuple[int, int]]] = {}
_turn = threading.Lock()
_SIOCGIFADDR = 0x8915  # from <linux/sockios.h>
_IPV6 = Path("/proc/net/if_inet6")
_BEYOND_A_LINK = (0x00, 0x10)  # scopes of an address there: global, and this host
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
        """Makes the keys; InputError where openssl is missing."""
        self._rank = rank
        self.folder = Path(mkdtemp(prefix="bounded-loss-"))
        self.close = weakref.finalize(self, _remove, self.folder, os.getpid())
        names = [SERVER, name_of(rank)]
        keys.make(self.folder, names)
        # Its own, as PEM texts.
        self.certificates = {name: (self.folder / f"{name}.crt").read_text() for name in names}

    def meet(self, certificates: list[Mapping[str, str]]) -> None:
        """Keeps the certificates of all ranks, or of the first ones."""
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


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked one leaves it to its parent
        shutil.rmtree(folder, ignore_errors=True)


class Rendezvous:
    """One exchange's part of the store, and what its ranks know of each other after `meet`."""

    def __init__(self, settings: Settings, within: dist.Store | None = None) -> None:
        """`within` is this exchange's alone; None: a part of the store of the group."""
        if within is None and not (dist.is_available() and dist.is_initialized()):
            raise InputError("there is no process group; call init_process_group before")
        group = settings.group if settings.group is not None else dist.group.WORLD
        assert group is not None
        self.group = group
        # Torch knows the group, or it is one that has a store of its own.
        self.rank = dist.get_rank(group) if within is None else group.rank()
        if self.rank < 0:
            raise InputError("this rank is not in the process group `group`")
        self.world = group.size()
        self.timeout_s = settings.timeout_s or _timeout_of(group)
        self.addresses: list[str] = []  # by rank
        self.session = 0  # a number that all ranks share and nobody else knows
        self.chunk_bytes = 0  # what a datagram carries on all paths
        self.identity: Identity | None = None  # None inside one machine, or where `insecure`
        self._settings = settings
        self._answered = ""  # this rank's key of the stage before
        if within is not None:
            self._store = self._outside = _connected(dist.PrefixStore("meeting", within))
            return
        name = group.group_name
        _exchanges[name] += 1
        prefix = f"bounded-loss/{name}/{_exchanges[name]}"
        store = dist.distributed_c10d._get_process_group_store(group)
        self._store = _connected(dist.PrefixStore(prefix, store))
        if settings.returns is not None:
            self.rank, store = settings.returns.rank, settings.returns.store
        # A process outside the group knows no more than the store itself.
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        self._outside = dist.PrefixStore(f"{prefix}/return", store)

    def number_of(self, rank: int) -> int:
        """Returns a rank's number in the default process group; its own where torch knows none."""
        if self._settings.returns is not None:
            return rank
        try:
            return dist.get_global_rank(self.group, rank)
        except ValueError:
            return rank

    def leave(self, key: str, value: Any) -> None:
        """Leaves a message for ranks that come back, or for the others as one of these."""
        self._ask(partial(self._outside.set, key, json.dumps(value)))

    def find(self, key: str) -> Any:
        """Returns the message that was left there; None if there is none yet."""
        return self._ask(partial(_value, self._outside, key))

    def share(
        self,
        stage: str,
        facts_of_this: Callable[[], Mapping[str, Any]],
        within_s: float | None = None,
    ) -> list[Any]:
        """Returns all ranks' facts; InputError on all where one has raised it.

        A stage is shared once. PeerLost, by its number in the group, for a rank that does not come.
        """
        within_s = within_s or self.timeout_s
        try:
            own = {"facts": facts_of_this(), "problem": ""}
        except InputError as error:
            own = {"facts": {}, "problem": str(error)}
        self._ask(partial(self._store.set, f"{stage}/{self.rank}", json.dumps(own)))
        until_s = time.monotonic() + within_s
        replies = []
        for rank in range(self.world):
            pause_s = _SHORTEST_S
            while (reply := self._ask(partial(self._reply, f"{stage}/{rank}"))) is None:
                if time.monotonic() >= until_s:
                    reason = f"did not come to {stage} within {within_s:g} s"
                    raise PeerLost(f"rank {rank}", reason)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_S)
            replies.append(reply)
        # All have come here, so all have read what they shared before.
        if self._answered:
            self._ask(partial(self._store.delete_key, self._answered))
        self._answered = f"{stage}/{self.rank}"
        for rank, reply in enumerate(replies):
            if reply["problem"]:
                raise InputError(f"rank {self.number_of(rank)}: {reply['problem']}")
        return [reply["facts"] for reply in replies]

    def _reply(self, key: str) -> Any:
        """Returns a rank's reply; None if there is none yet. PeerLost once a rank has failed."""
        reply = _value(self._store, key)
        if reply is None and (failure := _value(self._store, _FAILURE)) is not None:
            raise PeerLost(f"rank {failure['rank']}", str(failure["reason"]))
        return reply

    def require_equal(self, facts: Sequence[Mapping[str, Any]], **more: str) -> None:
        """InputError, the same line on all ranks, where these differ."""
        require_equal(facts, names=[self.number_of(rank) for rank in range(len(facts))], **more)

    def meet(self) -> None:
        """Meets all ranks; InputError, the same line on all, where they differ or one cannot."""
        settings = self._settings

        def introduction() -> dict[str, Any]:
            address = own_address(settings.interface)
            return {"terms": settings.terms(), "session": secrets.randbits(32), "address": address}

        ranks = self.share("the meeting of all ranks", introduction)
        self.require_equal([rank["terms"] for rank in ranks])
        self.session = ranks[0]["session"]
        self.addresses = [rank["address"] for rank in ranks]
        require_reachable(self.addresses)
        beyond = not (on_one_machine(self.addresses) or settings.insecure)
        if settings.protocol_config.carrier == "tcp" and beyond:
            raise InputError(
                "the protocol tcp sends gradients that anybody on the way could change; valid: "
                "another protocol, or insecure=True where nobody else is on the network"
            )

        def keys_and_ports() -> dict[str, Any]:
            if settings.port is not None:
                control_port, data_port = self._fixed_ports
                with ExitStack() as held:
                    hold_ports(held, self.addresses[self.rank], control_port, 1)
                    hold_ports(held, self.addresses[self.rank], data_port, self.world - 1)
            if beyond:
                self.identity = Identity(self.rank)
            certificates = self.identity.certificates if self.identity is not None else {}
            chunk_bytes = fitting_bytes(self.addresses[self.rank], self.addresses)
            return {"certificates": certificates, "chunk_bytes": chunk_bytes}

        shared = self.share("the sharing of keys", keys_and_ports)
        if self.identity is not None:
            self.identity.meet([rank["certificates"] for rank in shared])
        fitting = min(rank["chunk_bytes"] for rank in shared)
        if settings.protocol_config.compresses:
            # A choice and a codec's scale are of a chunk: none is larger than on Ethernet.
            fitting = min(fitting, DEFAULT_CHUNK_BYTES)
        self.chunk_bytes = settings.chunk_bytes or fitting

    @cached_property
    def _fixed_ports(self) -> tuple[int, int]:
        """This rank's port for control messages and its first one for data."""
        first, own, others = self._settings.port, self.addresses[self.rank], self.world - 1
        assert first is not None
        here, number = self.addresses.count(own), self.addresses[: self.rank].count(own)
        # Ranks of one machine, and exchanges of one process, take them in turn: for control
        # messages downwards, and for data upwards, so filters can tell them apart.
        with _turn:
            taken = _beyond.setdefault(first, {})
            control = min((lower for lower, _ in taken.values()), default=first)
            data = max((higher for _, higher in taken.values()), default=first + 1)
            taken[self] = control - here, data + here * others
        return control - number, data + number * others

    def ports(self, session: int) -> tuple[list[int], list[int]]:
        """Returns each rank's port for control messages, and its first one for data."""
        # Held until all ranks have theirs. Not for longer: processes that a data loader forks
        # meanwhile would hold them on. So they are to be used at once.
        with ExitStack() as held:

            def ports() -> dict[str, int]:
                if self._settings.port is None:
                    control = hold_free_ports(held, self.addresses[self.rank], self.world)
                    data = control + 1
                else:
                    control, data = self._fixed_ports
                return {"control": control, "data": data}

            ranks = self.share(f"the sharing of ports for session {session}", ports)
        return [rank["control"] for rank in ranks], [rank["data"] for rank in ranks]

    def close(self) -> None:
        """Gives back keys and ports."""
        if self.identity is not None:
            self.identity.close()
        with _turn:
            for taken in _beyond.values():
                taken.pop(self, None)

    def first_error(self, error: Exception) -> Exception:
        """Reports to all why the exchange ends; returns the error that is to be raised here."""
        lost = re.search(r"\d+", error.peer) if isinstance(error, PeerLost) else None
        rank = self.rank if lost is None else int(lost[0])
        reason = " ".join((error.reason if isinstance(error, PeerLost) else str(error)).split())
        if self._settings.min_ranks is None:  # else one that is gone says nothing for the others
            rank, reason = self.first_failure(rank, reason)
        # What this rank finds wrong itself says more than that another was first to say so.
        return error if lost is None else PeerLost(f"rank {self.number_of(rank)}", reason)

    def first_failure(self, rank: int, reason: str) -> tuple[int, str]:
        """Reports to all why the exchange has ended; returns the first report, within seconds."""
        try:
            return self._ask(partial(self._first, rank, reason), _REPORT_S)
        except Exception:  # the store may have been the one that died
            return rank, reason

    def _first(self, rank: int, reason: str) -> tuple[int, str]:
        # The one who finds a peer dead ends its connections with all others, who would otherwise
        # take it for the dead one: whoever only sees a connection end waits for another report.
        ended = rank != self.rank and any(word in reason for word in _ENDED)
        until_s = time.monotonic() + (_MOMENT_S if ended else 0)
        while not self._store.check([_FAILURE]) and time.monotonic() < until_s:
            time.sleep(_LONGEST_S)
        own = json.dumps({"rank": rank, "reason": reason})
        first = json.loads(self._store.compare_set(_FAILURE, "", own))
        return int(first["rank"]), str(first["reason"])

    def _ask(self, ask: Callable[[], T], within_s: float | None = None) -> T:
        """Asks the store in a thread that may hang for ever; PeerLost when no answer comes."""
        within_s = within_s or min(_SILENT_S, self.timeout_s)
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=run, name="bounded-loss-store", daemon=True).start()
        try:
            return answer.result(within_s)
        except TimeoutError:
            raise PeerLost(STORE, f"it has not answered for {within_s:g} s") from None
        except RuntimeError as error:
            raise PeerLost(STORE, str(error).partition("\n")[0]) from None


def _connected(store: Any) -> dist.Store:
    """Returns the store over a connection of its own: one that waits answers nobody else."""
    connected: dist.Store = store.clone()
    return connected


def _value(store: dist.Store, key: str) -> Any:
    """Returns what is stored; None if nothing is yet."""
    return json.loads(store.get(key)) if store.check([key]) else None


def _timeout_of(group: dist.ProcessGroup) -> float:
    """Returns the timeout of init_process_group."""
    for device in ("cpu", "cuda"):
        try:
            options = group._get_backend(torch.device(device)).options
            return float(options._timeout.total_seconds())
        except (RuntimeError, AttributeError):
            continue
    return dist.default_pg_timeout.total_seconds()


def fitting_bytes(own: str, addresses: list[str]) -> int:
    """Returns the largest chunk that fits the MTU of this rank's paths."""
    here, *others = (resolve(address, what="an address") for address in (own, *addresses))
    mtus_bytes = (path_mtu_bytes(here, other) for other in others)
    mtu_bytes = min(filter(None, mtus_bytes), default=_ETHERNET_MTU_BYTES)
    fitting = largest_chunk_bytes(mtu_bytes, here.family, TAG_BYTES)
    return min(fitting, _MOST_CHUNK_BYTES)


def own_address(interface: str | None) -> str:
    """The address by which other ranks reach this one: of IPv4, or else of IPv6."""
    interface = interface or os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface:
        return _address_of(interface)
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    reason = ""
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((master, 9))  # sends nothing
            except OSError as error:
                reason = reason or str(error.strerror or error)
            else:
                return str(probe.getsockname()[0])
    raise InputError(
        f"MASTER_ADDR is {shown(master)}, which cannot be reached: {reason}; name an interface"
    )


def _address_of(interface: str) -> str:
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise InputError(f"interface is {shown(interface)}; valid: {', '.join(sorted(names))}")
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
        except OSError:
            pass
    for line in _IPV6.read_text().splitlines() if _IPV6.exists() else ():
        address, _, _, scope, _, name = line.split()
        if name == interface and int(scope, 16) in _BEYOND_A_LINK:
            return str(ipaddress.IPv6Address(bytes.fromhex(address)))
    raise InputError(
        f"interface {interface!r} has no address of IPv4, nor one of IPv6 beyond its link; "
        "valid: one that has"
    )


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def on_one_machine(addresses: list[str]) -> bool:
    return all(map(is_loopback, addresses))


def require_reachable(addresses: list[str]) -> None:
    """InputError where ranks have addresses that not all others can reach."""
    versions = [ipaddress.ip_address(address).version for address in addresses]
    if len(set(versions)) > 1:
        other = versions.index(6 if versions[0] == 4 else 4)
        raise InputError(
            f"rank 0 has the address {addresses[0]} and rank {other} {addresses[other]}; valid: "
            "one IP version on all ranks; name interfaces (interface=, or GLOO_SOCKET_IFNAME)"
        )
    inside = [rank for rank, address in enumerate(addresses) if is_loopback(address)]
    if inside and len(inside) != len(addresses):
        raise InputError(
            f"rank {inside[0]} has the address {addresses[inside[0]]}, which other machines cannot "
            "reach; name its interface (interface=, or GLOO_SOCKET_IFNAME)"
        )


class _TakenError(InputError):
    """A port belongs to another socket."""


def hold_ports(held: ExitStack, address: str, first: int, count: int) -> None:
    """Holds `count` ports in a row, TCP and UDP; InputError, which names a port that is taken."""
    if not 1 <= first <= 65536 - count:
        raise InputError(f"port is {first}, and {count} are needed; valid: 1 to {65536 - count}")
    family = resolve(address, what="an address").family
    for port in range(first, first + count):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            tcp = kind == socket.SOCK_STREAM
            try:
                holder = held.enter_context(socket.socket(family, kind))
                # A connection that has just ended does not count. Of two that take a TCP port at
                # once, one alone can listen.
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, tcp)
                holder.bind((address, port))
                if tcp:
                    holder.listen(1)
            except OSError as error:
                place = f"port {port} of {address}"
                if error.errno == errno.EADDRINUSE:
                    raise _TakenError(f"{place} is taken; valid: a free one") from None
                raise InputError(f"{place} cannot be used: {error.strerror}") from None


def hold_free_ports(held: ExitStack, address: str, count: int) -> int:
    """Holds `count` ports in a row that nobody else uses; returns the first one."""
    for _ in range(_TRIES):
        first = _DRAWS.choice(_FREE)
        try:
            with ExitStack() as these:
                hold_ports(these, address, first, count)
                held.enter_context(these.pop_all())
        except _TakenError:
            continue
        return first
    raise InputError(f"no {count} free ports in a row from {_FREE.start} to {_FREE.stop}")
