"""The endpoint that training uses: sends payloads to peers and receives payloads from them.

It is the same for every protocol. `opening.open_endpoint` chooses the kind of endpoint.
"""

import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.control_connection import ControlConnection
from testbed.transport.control_messages import (
    MAX_ANNOUNCEMENT_BYTES,
    ControlMessage,
    ControlParser,
    Hello,
    MessageType,
    Welcome,
    body_limits,
    check_u32,
)
from testbed.transport.errors import ProtocolError, TransportError
from testbed.transport.event_loop import Loop, PeerTransfer
from testbed.transport.handshake import Listener, accept_peers, connect_to_server
from testbed.transport.layout import PayloadLayout
from testbed.transport.protocols import ProtocolConfig
from testbed.transport.tolerance import Fixed, StopRuleFactory
from testbed.transport.transfer_report import Observer, TransferReport
from testbed.transport.wire import DATA_PORTS

SERVER = "server"
_LINGER_S = 1.0


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
        segmentation: whether the kernel may cut large sends into datagrams (UDP_SEGMENT), which
            saves processor time. Until then an interface's queue holds, counts and drops them as
            one packet; turn it off where queues matter. `tcp` ignores it.
        observer: is called with the congestion state of each sending path, at most every 10 ms per
            peer. Kernel TCP does not call it; its state is read from outside (TCP_INFO).
        survive_peers: whether the server goes on with the other workers when it loses one. `lost`
            then tells which are gone, and reports and announcements leave them out.
        sockets: what `open_sockets` has opened, for a side that has laid down root's powers since.
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
    data_port: int = DATA_PORTS[0]
    seed: int = 0
    checksum: bool = False
    segmentation: bool = True
    peer_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    observer: Observer | None = None
    survive_peers: bool = False
    sockets: Sequence[socket.socket] = ()

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

    This class has the control connections; subclasses add the data sockets.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._counters: Counter[str] = Counter()
        self._control: dict[str, ControlConnection] = {}
        self._loop: Loop | None = None

    # What subclasses implement.

    @abstractmethod
    def _open_data(self) -> int:
        """Binds the data sockets before the peers join; returns the port for the HELLO."""

    @abstractmethod
    def _data_listeners(self) -> list[Listener]:
        """Server: listeners for data connections, one per worker."""

    @abstractmethod
    def _join_data(self, peer: str, port: int, until_s: float) -> None:
        """Called when the peer has joined and its data port is known; connects if necessary."""

    @abstractmethod
    def _sending(
        self, peer: str, transfer: int, payload: NDArray[np.uint8], now_s: float
    ) -> PeerTransfer:
        """Begins to send to one peer."""

    @abstractmethod
    def _receiving(
        self, peer: str, transfer: int, rule: StopRuleFactory, into: NDArray[np.uint8], now_s: float
    ) -> PeerTransfer:
        """Begins to receive from one peer."""

    @abstractmethod
    def _close_data(self) -> None:
        """Closes the data sockets."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the kernel granted: buffer sizes, offloads, the congestion control in use."""

    # What training calls.

    def open(self) -> None:
        """Joins the peers: the server waits for all workers, a worker connects to the server.

        Raises PeerLost naming who did not come within connect_timeout_s, ProtocolError when a
        peer has another layout (saying what differs), ValueError for a congestion control that
        the kernel does not have or a chunk larger than the path's MTU, OSError when an address
        or port cannot be used.
        """
        if self._loop is not None:
            return
        try:
            if self._config.is_server:
                self._accept_workers()
            else:
                self._connect_to_server()
        except BaseException:
            self.close()
            raise
        self._loop = Loop(
            self._control,
            peer_timeout_s=self._config.peer_timeout_s,
            counters=self._counters,
            keep_going=self._config.is_server and self._config.survive_peers,
        )

    def _accept_workers(self) -> None:
        config = self._config
        self._open_data()
        until_s = time.monotonic() + config.connect_timeout_s
        listeners: list[Listener] = []
        try:
            listener = Listener(
                address=config.bind_address,
                port=config.control_port,
                expected=config.peers,
                answer=self._answer,
            )
            listeners = [listener]
            listeners += self._data_listeners()
            accept_peers(
                listeners,
                session=config.session,
                addresses=config.peers,
                timeout_s=config.connect_timeout_s,
                counters=self._counters,
            )
        except BaseException:
            for opened in listeners:
                opened.close()
                for connection, _ in opened.arrived.values():
                    connection.close()
            raise
        for name in config.peers:
            connection, hello = listener.arrived[name]
            self._control_connection(name, connection)
            self._join_data(name, hello.data_port, until_s)

    def _answer(self, hello: Hello) -> Welcome:
        """The WELCOME for a worker; ProtocolError when its layout differs."""
        theirs = PayloadLayout.decode(hello.layout)
        difference = self._config.layout.difference(theirs, ("the server", hello.name))
        if difference is not None:
            raise ProtocolError(f"the payload layouts differ: {difference}")
        return Welcome(
            session=self._config.session, data_port=self._config.server_data_port(hello.name)
        )

    def _connect_to_server(self) -> None:
        config = self._config
        until_s = time.monotonic() + config.connect_timeout_s
        hello = Hello(
            session=config.session,
            name=config.name,
            data_port=self._open_data(),
            layout=config.layout.encode(),
        )
        connection, welcome = connect_to_server(
            address=config.peers[SERVER],
            port=config.control_port,
            bind_address=config.bind_address,
            hello=hello,
            until_s=until_s,
        )
        self._control_connection(SERVER, connection)
        self._join_data(SERVER, welcome.data_port, until_s)

    def _control_connection(self, name: str, connection: socket.socket) -> None:
        limits = body_limits(self._config.layout.chunk_count)
        if self._config.is_server:
            del limits[MessageType.ANNOUNCE]
        control = ControlConnection(peer=name, connection=connection, parser=ControlParser(limits))
        control.give_up_after(self._config.peer_timeout_s)
        self._control[name] = control

    def send(
        self, transfer: int, payloads: Mapping[str, NDArray[np.uint8]]
    ) -> dict[str, TransferReport]:
        """Sends to several peers at once; returns when each has answered STOP.

        `payloads` maps peers to buffers of the layout; several peers may share one buffer.
        """
        return self._transfer_all(
            transfer,
            payloads,
            lambda peer, now_s: self._sending(peer, transfer, payloads[peer], now_s),
        )

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
        rule = tolerance if callable(tolerance) else Fixed(tolerance).stop_rule(critical=False)
        return self._transfer_all(
            transfer,
            into,
            lambda peer, now_s: self._receiving(peer, transfer, rule, into[peer], now_s),
        )

    def _transfer_all(
        self,
        transfer: int,
        buffers: Mapping[str, NDArray[np.uint8]],
        begin: Callable[[str, float], PeerTransfer],
    ) -> dict[str, TransferReport]:
        loop = self._joined()
        check_u32("transfer", transfer)
        for peer in buffers:
            if peer not in self._control:
                raise ValueError(f"unknown peer {peer!r}; valid: {', '.join(self._control)}")
            if peer not in loop.lost:
                loop.check_transfer(peer, transfer)
        now_s = time.monotonic()
        peer_transfers = {peer: begin(peer, now_s) for peer in buffers if peer not in loop.lost}
        loop.run(peer_transfers)
        reports = {
            peer: peer_transfer.report()
            for peer, peer_transfer in peer_transfers.items()
            if peer not in loop.lost
        }
        for report in reports.values():
            self._counters.update(report.ignored)
        return reports

    @property
    def lost(self) -> dict[str, str]:
        """Peers that are gone, each with the reason, where this side goes on without them."""
        return dict(self._joined().lost)

    def announce(self, body: bytes) -> None:
        """Server only: sends every worker a message of at most 65536 bytes, reliably."""
        loop = self._joined()
        if not self._config.is_server:
            raise TransportError("only the server announces")
        if len(body) > MAX_ANNOUNCEMENT_BYTES:
            raise ValueError(
                f"an announcement of {len(body)} bytes; valid: at most {MAX_ANNOUNCEMENT_BYTES}"
            )
        for name, connection in self._control.items():
            if name not in loop.lost:
                connection.send([ControlMessage(MessageType.ANNOUNCE, body=body)])
        loop.flush()

    def await_announcement(self) -> bytes:
        """Worker only: waits for the server's next announcement and returns it."""
        loop = self._joined()
        if self._config.is_server:
            raise TransportError("the server makes the announcements")
        return loop.announcement(SERVER)

    def counters(self) -> dict[str, int]:
        """How many connections and datagrams were ignored since `open`, by reason."""
        return {reason: count for reason, count in self._counters.items() if count}

    def close(self) -> None:
        """Ends all connections. What was sent before still arrives. May be called again."""
        for connection in self._control.values():
            connection.finish()
        until_s = time.monotonic() + _LINGER_S
        for connection in self._control.values():
            connection.close(until_s)
        self._control.clear()
        self._close_data()
        if self._loop is not None:
            self._loop.close()
            self._loop = None

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

    def _joined(self) -> Loop:
        if self._loop is None:
            raise TransportError("the endpoint is not open")
        return self._loop
