"""The endpoints that training uses, in virtual time: the same methods, without sockets."""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.simulate import kernel_tcp
from testbed.simulate.engine import Simulation
from testbed.simulate.peer import HEADERS_ONLY, Arrivals, Peer, Way, frames_of, link_up
from testbed.simulate.tasks import Signal, Tasks
from testbed.transport.congestion import Bbr
from testbed.transport.connection import Connection, ConnectionState
from testbed.transport.errors import PeerLost
from testbed.transport.events import Announced, Event, PeerGone, TransferDone, TransferReport
from testbed.transport.fast_path import FastPath
from testbed.transport.joining import SERVER
from testbed.transport.layout import ELEMENT_BYTES, PayloadLayout
from testbed.transport.messages import Hello, Welcome
from testbed.transport.native.fast_path import FAST_PATH
from testbed.transport.net.carriers import DataSockets, connection_settings, sending_path
from testbed.transport.net.config import EndpointConfig
from testbed.transport.net.endpoint import Handle
from testbed.transport.net.tcp import HEAD_BYTES, Selected, compression_of
from testbed.transport.order import Arranger
from testbed.transport.sending_path import SendingPath
from testbed.transport.settings import ConnectionSettings
from testbed.transport.tolerance import Fixed, StopRuleFactory
from testbed.transport.wire import HEADER_BYTES, wire_bytes

Buffer = NDArray[np.uint8]
Mask = NDArray[np.bool_]

_PORT = 47000


class World:
    """The endpoints of a server and its workers, each pair joined by two ways."""

    def __init__(
        self,
        simulation: Simulation,
        tasks: Tasks,
        ways: Mapping[str, tuple[Way, Way]],
        arrivals: Mapping[str, Arrivals],
        *,
        contents: bool = True,
        ahead: bool = True,
        tcp_least_timeout_s: float = kernel_tcp.LEAST_TIMEOUT_S,
    ) -> None:
        """`ways`: worker -> its way to the server, and back; `arrivals`: host -> its interface."""
        # Without `contents` datagrams are headers alone, and no buffer is read or written. Without
        # `ahead` each batch and each arrival is an event of its own, which changes nothing else.
        self._ahead = ahead
        self._tcp = kernel_tcp.TcpModel(least_timeout_s=tcp_least_timeout_s)
        self.simulation = simulation
        self.tasks = tasks
        self._ways = ways
        self._arrivals = arrivals
        self._fast_path = FAST_PATH if contents else HEADERS_ONLY or FAST_PATH
        self._endpoints: dict[str, Endpoint] = {}
        self._settings: dict[str, ConnectionSettings] = {}
        self._opened: list[Signal] = []
        self.servers: dict[str, Peer] = {}  # the server's side of each worker's latest connection
        self._started = False

    def open_endpoint(self, config: EndpointConfig, _: DataSockets | None = None) -> "Endpoint":
        return Endpoint(self, config)

    def join(self, endpoint: "Endpoint") -> None:
        name, config = endpoint.config.name, endpoint.config
        self._endpoints[name] = endpoint
        self._settings[name] = _settings(config, self._fast_path, self._tcp)
        if name == SERVER:
            for signal in self._opened:
                signal.notify()
            return
        self._opened.append(endpoint.signal)
        endpoint.signal.wait_until(lambda: SERVER in self._settings)
        self.connect(name)

    def connect(self, name: str) -> Peer:
        """Make a worker's side of a connection, and the server's once its HELLO is there."""
        settings = self._settings[name]
        session, layout = settings.session, settings.layout.encode()
        hello = Hello(session=session, name=name, data_port=_PORT, layout=layout)
        there, back = self._ways[name]
        worker = self._new_peer(name, SERVER, there, hello=hello)
        worker.connection.control()  # the HELLO

        def arrive() -> None:
            if name in self.servers:
                self.servers[name].cut("it has joined again")
            welcome = Welcome(session=session, data_port=_PORT)
            server = self.servers[name] = self._new_peer(SERVER, name, back, welcome=welcome)
            link_up(server, worker)
            self._start()

        there.send_control(self.simulation, arrive)
        return worker

    def _new_peer(self, side: str, other: str, way: Way, **first: Any) -> Peer:
        settings, path, now_s = self._settings[side], self._path(side), self.simulation.now_s
        connection = Connection(peer=other, settings=settings, path=path, now_s=now_s, **first)
        return self._make_peer(side, connection, way)

    def _start(self) -> None:
        present = [peer for peer in self.servers.values() if peer.connection.lost is None]
        self._started = self._started or len(present) == len(self._ways)
        for peer in present if self._started else []:
            if peer.connection.state is ConnectionState.WAITING:
                peer.connection.start(self.simulation.now_s)
                peer.work()

    def _path(self, side: str) -> SendingPath:
        config = self._endpoints[side].config
        path = sending_path(config, more_bytes=_more_header_bytes(config))
        if _is_tcp(config) and isinstance(path.congestion, Bbr):
            # Linux has version 1, and its times.
            path.congestion.bounds_losses = path.congestion.excuses_losses = False
            path.congestion.min_rtt_window_s, path.congestion.probe_rtt_s = 10.0, 0.2
        if self._fast_path is HEADERS_ONLY:
            headers = np.zeros((len(path.frames), HEADER_BYTES), np.uint8)
            path.frames = frames_of(headers, config.layout.chunk_bytes)
        return path

    def _make_peer(self, side: str, connection: Connection, way: Way) -> Peer:
        endpoint = self._endpoints[side]
        peer = Peer(
            self.simulation,
            connection,
            way,
            coalesce_s=math.inf,
            measured=endpoint.measured,
            arrivals=self._arrivals[side],
            ahead=self._ahead,
            more_header_bytes=_more_header_bytes(endpoint.config),
        )
        endpoint.add(peer)
        # The server is told of no event when all have come, which this may be.
        self.simulation.at(self.simulation.now_s, endpoint.signal.notify)
        return peer


class Compressed:
    """A compressed payload's stream, as `net.tcp` has it: a frame's head and a block, in chunks."""

    def __init__(self, compression: Selected, whole: PayloadLayout) -> None:
        self._compression, self._whole = compression, whole
        self._block = slice(HEAD_BYTES, HEAD_BYTES + compression.size(whole))
        elements = -(-self._block.stop // ELEMENT_BYTES)
        self.layout = PayloadLayout([("stream", elements)], whole.chunk_bytes)

    def pack(self, payload: Buffer) -> tuple[Mask, Buffer]:
        chosen, block = self._compression.pack(self._whole, payload)
        stream = self.layout.new_buffer()
        stream[self._block] = np.frombuffer(block, np.uint8)
        return chosen, stream

    def unpack(self, stream: Buffer, into: Buffer) -> Mask:
        return self._compression.unpack(self._whole, stream[self._block], self._whole.rows(into))

    def report(self, report: TransferReport, chosen: Mask) -> TransferReport:
        """Make a stream's report one of chunks; `chunks_sent` stays that of its segments."""
        return replace(
            report,
            chunk_count=self._whole.chunk_count,
            chunks_received=self._compression.count(self._whole),
            received=chosen,
        )


def _is_tcp(config: EndpointConfig) -> bool:
    return config.protocol.carrier == "tcp"


def _more_header_bytes(config: EndpointConfig) -> int:
    return kernel_tcp.MORE_HEADER_BYTES if _is_tcp(config) else 0


def _compressed(config: EndpointConfig) -> Compressed | None:
    compression = compression_of(config.protocol)
    return None if compression is None else Compressed(compression, config.layout)


def _settings(
    config: EndpointConfig, fast_path: FastPath, tcp: kernel_tcp.TcpModel
) -> ConnectionSettings:
    settings, compressed = connection_settings(config), _compressed(config)
    return replace(
        settings,
        layout=settings.layout if compressed is None else compressed.layout,
        repair=tcp if _is_tcp(config) else settings.repair,
        control_datagrams=False,  # no control message is lost here: the stream carries them
        fast_path=fast_path,
    )


class Endpoint:
    """One side's transfers; its methods are those of `testbed.transport.Endpoint`."""

    def __init__(self, world: World, config: EndpointConfig) -> None:
        self.config = config
        # Where the congestion control measures the path, nothing may gather.
        self.measured = not _is_tcp(config) and config.protocol.measures
        self.signal = Signal(world.tasks)  # of each event
        self.lost: dict[str, str] = {}  # always empty: workers do not die
        self._world = world
        self._peers: dict[str, Peer] = {}
        self._gone: dict[str, str] = {}
        self._active: list[Handle] = []
        self._announcements: deque[bytes] = deque()
        self._compressed = _compressed(config)

    def __enter__(self) -> "Endpoint":
        self._world.join(self)
        self._wait(self._all_open)
        return self

    def _all_open(self) -> bool:
        peers = self._peers.values()
        return len(peers) == len(self.config.peers) and all(
            peer.connection.state is ConnectionState.OPEN for peer in peers
        )

    def __exit__(self, *_: object) -> None:
        pass

    def add(self, peer: Peer) -> None:
        name = peer.connection.peer
        self._peers[name] = peer
        peer.leave_out = self.config.leave_out
        peer.on_event = lambda event: self._on_event(name, event)

    def _on_event(self, name: str, event: Event) -> None:
        self._peers[name].events.clear()  # they hold what was received, and runs are long
        if isinstance(event, TransferDone):
            for handle in self._active:
                if (handle.transfer, handle.sending) == (event.transfer, event.sending):
                    handle.end(name, self._with_headers(event.report))
        elif isinstance(event, PeerGone):
            self._gone[name] = event.reason
            for handle in self._active:
                handle.end(name, event.reason)
        elif isinstance(event, Announced):
            self._announcements.append(event.body)
        self.signal.notify()

    def _with_headers(self, report: TransferReport) -> TransferReport:
        if not _is_tcp(self.config):
            return report
        longer = 1 + kernel_tcp.MORE_HEADER_BYTES / wire_bytes(1, self.config.layout.chunk_bytes)
        counts = ("bytes_sent", "bytes_received", "retransmitted_bytes")
        return replace(report, **{name: round(getattr(report, name) * longer) for name in counts})

    def _wait(self, ready: Callable[[], bool]) -> None:
        self.signal.wait_until(lambda: bool(self._gone) or ready())
        if self._gone:
            raise PeerLost(*next(iter(self._gone.items())))

    def send(self, transfer: int, payloads: Mapping[str, Buffer]) -> dict[str, TransferReport]:
        arrangers: dict[int, Arranger] | None = {} if len(payloads) > 1 else None
        compressed, streams = self._compressed, payloads
        if compressed is not None:
            different = {id(payload): payload for payload in payloads.values()}
            packed = {key: compressed.pack(payload) for key, payload in different.items()}
            chosen = {peer: packed[id(payload)][0] for peer, payload in payloads.items()}
            streams = {peer: packed[id(payload)][1] for peer, payload in payloads.items()}

        def begin(connection: Connection, now_s: float) -> None:
            connection.post_send(transfer, streams[connection.peer], now_s, arrangers)

        reports = self._transfer(transfer, streams, begin, sending=True)
        if compressed is None:
            return reports
        return {peer: compressed.report(report, chosen[peer]) for peer, report in reports.items()}

    def receive(
        self, transfer: int, tolerance: float | StopRuleFactory, into: Mapping[str, Buffer]
    ) -> dict[str, TransferReport]:
        make = tolerance if callable(tolerance) else Fixed(tolerance).stop_rule(critical=False)
        layout, compressed, streams = self.config.layout_of(transfer), self._compressed, into
        if compressed is not None:
            layout = compressed.layout
            streams = {peer: layout.new_buffer() for peer in into}

        def begin(connection: Connection, now_s: float) -> None:
            connection.post_receive(transfer, make(layout), streams[connection.peer], now_s)

        reports = self._transfer(transfer, streams, begin, sending=False)
        if compressed is None:
            return reports
        return {
            peer: compressed.report(report, compressed.unpack(streams[peer], into[peer]))
            for peer, report in reports.items()
        }

    def _transfer(
        self,
        transfer: int,
        buffers: Mapping[str, Buffer],
        begin: Callable[[Connection, float], None],
        *,
        sending: bool,
    ) -> dict[str, TransferReport]:
        handle = Handle(transfer, sending, set(buffers), lambda it: self._wait(lambda: it.done))
        self._active.append(handle)
        for peer in buffers:
            self._peers[peer].catch_up()
            begin(self._peers[peer].connection, self._world.simulation.now_s)
        for peer in buffers:
            self._peers[peer].work()
        reports = handle.wait()
        self._active.remove(handle)
        return reports

    def announce(self, body: bytes) -> None:
        for peer in self._peers.values():
            peer.catch_up()
            peer.connection.announce(body)
            peer.work()

    def await_announcement(self) -> bytes:
        peer = self._peers[SERVER]
        if not self._announcements:
            peer.catch_up()
            peer.connection.await_announcement(self._world.simulation.now_s)
            peer.work()
        self._wait(lambda: bool(self._announcements))
        return self._announcements.popleft()

    def counters(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for peer in self._peers.values():
            total += peer.connection.counters
        return dict(total)

    def facts(self) -> dict[str, Any]:
        name = self.config.protocol.congestion_control
        used = {
            "congestion_control": f"{name}(model)" if _is_tcp(self.config) else name,
            "compiled": FAST_PATH.compiled,
        }
        return dict.fromkeys(self._peers, used)
