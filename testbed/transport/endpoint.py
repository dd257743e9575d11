"""The interface that training uses: sends payloads to peers and receives payloads from them.

It is the same for every protocol. `opening.open_endpoint` chooses the implementation.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.control_messages import check_u32
from testbed.transport.layout import PayloadLayout
from testbed.transport.protocols import ProtocolConfig
from testbed.transport.tolerance import StopRuleFactory
from testbed.transport.transfer_report import Observer, TransferReport

SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class EndpointConfig:
    """One side of the transport.

    Attributes:
        session: 32 random bits of the run, given to all peers out of band; datagrams and
            messages with another session are dropped.
        name: this side's name; the server's is `server`.
        bind_address: IPv4 address of this side.
        peers: name -> IPv4 address. The server lists all workers, a worker lists the server.
        is_server: the server listens, workers connect.
        protocol, layout: equal on all sides.
        rate_bps: the pace of one transfer, in bits per second on the wire; math.inf for unpaced.
            The congestion control `fixed` takes it as its rate. Kernel TCP ignores it.
        control_port: the port on which the server accepts its workers.
        data_port: the server's data ports are data_port + i for worker i in the order of `peers`;
            a worker's UDP port is data_port itself (0 lets the kernel choose). A network can
            thus tell data from control by their ports.
        checksum: whether every datagram carries a CRC32C; equal on all sides. The chunk must then
            be 4 bytes smaller. Off by default because UDP has a checksum; `tcp` ignores it.
        seed: seeds the random choices of this side; give each side its own.
        peer_timeout_s: how long a peer that owes an answer or data may be silent.
        connect_timeout_s: how long `open` waits for the peers.
        observer: is called with the congestion state of each sending path, at most every 10 ms per
            peer. Kernel TCP does not call it; its state is read from outside (TCP_INFO).
        survive_peers: whether the server goes on with the other workers when it loses one. `lost`
            then tells which are gone, and reports and announcements leave them out.
    """

    session: int
    name: str
    bind_address: str
    peers: Mapping[str, str]
    is_server: bool
    protocol: ProtocolConfig
    layout: PayloadLayout
    rate_bps: float
    control_port: int = 46999
    data_port: int = 47000
    seed: int = 0
    checksum: bool = False
    peer_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    observer: Observer | None = None
    survive_peers: bool = False

    def __post_init__(self) -> None:
        check_u32("session", self.session)
        check_u32("seed", self.seed)
        if not self.peers:
            raise ValueError("peers is empty; at least one is needed")
        if not self.is_server and set(self.peers) != {SERVER}:
            raise ValueError(f"a worker's only peer is {SERVER!r}, not {', '.join(self.peers)}")
        for field in ("rate_bps", "peer_timeout_s", "connect_timeout_s"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} is {getattr(self, field)}; valid: above 0")
        if not 1 <= self.control_port <= 65535:
            raise ValueError(f"control_port is {self.control_port}; valid: 1 to 65535")
        lowest = 1 if self.is_server else 0
        highest = 65535 - (len(self.peers) - 1 if self.is_server else 0)
        if not lowest <= self.data_port <= highest:
            raise ValueError(f"data_port is {self.data_port}; valid: {lowest} to {highest}")

    def server_data_port(self, worker: str) -> int:
        """The server's port for the data of one worker."""
        return self.data_port + list(self.peers).index(worker)


class Endpoint(ABC):
    """One side's transfers. Not thread-safe; every method blocks until it is done.

    Transfers have ascending numbers, `Leg.GATHER.transfer(round)` and
    `Leg.BROADCAST.transfer(round)`; both sides call `send` and `receive` with the same number.
    When a peer dies, the methods that need it raise PeerLost, which names it. With
    `survive_peers` they do so only when the last peer is gone.
    """

    @abstractmethod
    def open(self) -> None:
        """Joins the peers: the server waits for all workers, a worker connects to the server.

        Raises PeerLost naming who did not come within connect_timeout_s, ProtocolError when a
        peer has another layout (saying what differs), ValueError for a congestion control that
        the kernel does not have or a chunk larger than the path's MTU, OSError when an address
        or port cannot be used.
        """

    @abstractmethod
    def send(
        self, transfer: int, payloads: Mapping[str, NDArray[np.uint8]]
    ) -> dict[str, TransferReport]:
        """Sends to several peers at once; returns when each has answered STOP.

        `payloads` maps peers to buffers of the layout; several peers may share one buffer.
        """

    @abstractmethod
    def receive(
        self,
        transfer: int,
        tolerance: float | StopRuleFactory,
        into: Mapping[str, NDArray[np.uint8]],
    ) -> dict[str, TransferReport]:
        """Receives from several peers at once; returns when enough has arrived from each.

        `tolerance` is the fraction that may be missing, or a rule from
        `policy.stop_rule(critical)`. `into` maps peers to buffers of the layout. Chunks that did
        not arrive leave their part of the buffer untouched; the report's `received` tells which.
        """

    @property
    @abstractmethod
    def lost(self) -> dict[str, str]:
        """Peers that are gone, each with the reason, where this side goes on without them."""

    @abstractmethod
    def announce(self, body: bytes) -> None:
        """Server only: sends every worker a message of at most 65536 bytes, reliably."""

    @abstractmethod
    def await_announcement(self) -> bytes:
        """Worker only: waits for the server's next announcement and returns it."""

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """How many connections and datagrams were ignored since `open`, by reason."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the kernel granted: buffer sizes, offloads, the congestion control in use."""

    @abstractmethod
    def close(self) -> None:
        """Ends all connections. What was sent before still arrives. May be called again."""

    def __enter__(self) -> "Endpoint":
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
