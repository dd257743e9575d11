"""Transfers in virtual time, over a network that misbehaves as told; and their parts by themselves.

`transfer` is one from end to end. `Two` are a worker and a server that have joined, for several.
`new_sender` and `new_receiver` are for tests that speak to one half of a transfer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Batch, Link
from testbed.simulate.peer import Peer, Take, Way, link_up
from testbed.transport import PayloadLayout, SendingPath, StopRule
from testbed.transport.congestion import CONGESTION_CONTROLS, FixedRate
from testbed.transport.congestion.base import CongestionControl, Feedback
from testbed.transport.connection import Connection
from testbed.transport.events import PeerGone, TransferDone, TransferReport
from testbed.transport.messages import (
    ControlMessage,
    Hello,
    MessageType,
    Welcome,
    pack_arrivals,
)
from testbed.transport.order import ChunkOrder, InOrder
from testbed.transport.receiver import Receiver
from testbed.transport.repair import REPAIRS, Passes
from testbed.transport.repair.base import Repair
from testbed.transport.sender import Sender
from testbed.transport.settings import ConnectionSettings, LeaveOut
from testbed.transport.tolerance import FractionRule, Progress
from testbed.transport.wire import CHUNK_BITS, wire_bytes

Bytes = NDArray[np.uint8]
SESSION = 0xC0FFEE


def layout_of(chunks: int, *, chunk_bytes: int = 16, last_elements: int = 4) -> PayloadLayout:
    elements = (chunks - 1) * (chunk_bytes // 4) + min(last_elements, chunk_bytes // 4)
    return PayloadLayout([("weights", elements)], chunk_bytes)


def random_payload(layout: PayloadLayout, seed: int = 0) -> Bytes:
    buffer = layout.new_buffer()
    generator = np.random.default_rng(seed)
    layout.floats(buffer)[:] = generator.standard_normal(layout.element_count)
    return buffer


class DoublingLink(Link):
    def __init__(
        self, simulation: Simulation, *, duplicate: float = 0.0, seed: int = 0, **options: Any
    ) -> None:
        super().__init__(simulation, seed=seed, **options)
        self._duplicate = duplicate
        self._doubling = np.random.default_rng([seed, 2])

    def _not_lost(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        places = super()._not_lost(places)
        return np.repeat(places, 1 + (self._doubling.random(len(places)) < self._duplicate))


class BusyPeer(Peer):
    """A peer that may do nothing for a while; what arrives meanwhile waits."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.batches: list[tuple[float, int]] = []  # when how many datagrams were sent together
        # Changes a datagram that it sends, or loses it behind the links.
        self.fate: Callable[[Bytes], Bytes | None] | None = None
        self._busy_until_s = -math.inf
        self._control_waiting: list[tuple[Sequence[Any], Take]] = []
        # Of a datagram of control messages: after which delays it comes.
        self.control_fate: Callable[[], list[float]] | None = None
        super().__init__(*arguments, **options)

    def be_busy(self, until_s: float) -> None:
        self.catch_up()
        self._busy_until_s = until_s
        self._simulation.at(until_s, self._wake_up)

    @property
    def _busy(self) -> bool:
        return self._simulation.now_s < self._busy_until_s

    def _wake_up(self) -> None:
        if self._busy:
            return
        self._read(waited=True)
        waiting, self._control_waiting = self._control_waiting, []
        for data, take in waiting:
            take(self.connection, data, self._simulation.now_s, waited=True)
        self.work()

    def work(self) -> None:
        if not self._busy:
            super().work()

    def _say(self, data: Sequence[Any], take: Take) -> None:
        if self.control_fate is None or take is not Connection.on_control_datagrams:
            super()._say(data, take)
            return
        for delay_s in self.control_fate():
            later = partial(super()._say, data, take)
            self._simulation.at(self._simulation.now_s + delay_s, later)

    def on_control(self, data: Sequence[Any], take: Take = Connection.on_control) -> None:
        if self._busy:
            self._control_waiting.append((data, take))
        else:
            super().on_control(data, take)

    def _schedule_read(self) -> None:
        if not self._busy:
            super()._schedule_read()

    def _on_read_alarm(self) -> None:
        if not self._busy:
            super()._on_read_alarm()

    def _read(self, *, waited: bool = False) -> None:
        if not self._busy:
            super()._read(waited=waited)

    def _carry(self, frames: Bytes, datagram_bytes: int, times_s: NDArray[np.float64]) -> Batch:
        self.batches.append((self._simulation.now_s, len(frames)))
        if self.fate is not None and len(frames):
            fates = [self.fate(frame) for frame in frames]
            # What is lost travels as zeros, which are no datagram of ours.
            frames = np.stack([np.zeros_like(frames[0]) if it is None else it for it in fates])
        return super()._carry(frames, datagram_bytes, times_s)

    def _take(self, now_s: float) -> tuple[Bytes, NDArray[np.float64]]:
        frames, times_s = super()._take(now_s)
        arrived = frames.any(axis=1)
        return frames[arrived], times_s[arrived]


def way_back(simulation: Simulation, delay_s: float) -> Way:
    return Way([Link(simulation, rate_bps=math.inf, delay_s=delay_s)])


@dataclass
class Network:
    """The way of data from sender to receiver; control is reliable both ways.

    `survives(sequence, nth)` decides about the nth transmission (from 0) of a chunk. What is lost
    has passed the link, as at the receiver's end; so the link is as busy as without loss.
    """

    survives: Callable[[int, int], bool] = lambda sequence, nth: True
    rate_bps: float = math.inf
    queue_bytes: float = math.inf
    delay_s: float = 0.001
    jitter_s: float = 0.0
    seed: int = 0
    sent_of: dict[int, int] = field(default_factory=dict)  # how often each chunk was sent

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self.link = self._new_link(Simulation())  # of the latest transfer

    def _new_link(self, simulation: Simulation) -> Link:
        return Link(
            simulation,
            rate_bps=self.rate_bps,
            delay_s=self.delay_s,
            queue_bytes=self.queue_bytes,
            jitter_s=self.jitter_s,
            seed=int(self._random.integers(2**32)),
        )

    def ways(self, simulation: Simulation) -> tuple[Way, Way]:
        """To the receiver and back, for one transfer."""
        self.link = self._new_link(simulation)
        return Way([self.link]), way_back(simulation, self.delay_s)

    def fate(self, frame: Bytes) -> Bytes | None:
        sequence = int.from_bytes(frame[4:8].tobytes(), "big") % (1 << CHUNK_BITS)
        nth = self.sent_of.get(sequence, 0)
        self.sent_of[sequence] = nth + 1
        return frame if self.survives(sequence, nth) else None


def bernoulli(loss: float, seed: int) -> Callable[[int, int], bool]:
    generator = np.random.default_rng(seed)
    return lambda sequence, nth: bool(generator.random() >= loss)


@dataclass
class Outcome:
    sender: Sender
    receiver: Receiver
    into: Bytes
    ended_s: float  # when STOP arrived


def settings_of(layout, repair=None, order=None, **settings):
    common = {"repair": repair or Passes(), "order": order or InOrder(), **settings}
    return ConnectionSettings(session=SESSION, layout=layout, **common)


def unpaced(layout: PayloadLayout, *, room: float = math.inf) -> SendingPath:
    """To a receiver that has room for so many datagrams."""
    return SendingPath(
        congestion=FixedRate(rate_bps=math.inf),
        chunk_bytes=layout.chunk_bytes,
        receive_buffer_bytes=room * wire_bytes(1, layout.chunk_bytes),
    )


def connections(
    simulation: Simulation,
    ways: tuple[Way, Way],
    layout: PayloadLayout,
    *,
    repair: Repair | None = None,
    order: ChunkOrder | None = None,
    path: SendingPath | None = None,
    **settings: Any,
) -> tuple[BusyPeer, BusyPeer]:
    """A worker and a server that have joined; `path` is the worker's, `ways` there and back.

    Without rate limit unless `path` has one.
    """
    shared = settings_of(layout, repair, order, **{"peer_timeout_s": 1e6, **settings})
    now_s = simulation.now_s
    worker = Connection(
        peer="server",
        path=path or unpaced(layout),
        hello=Hello(session=SESSION, name="worker", layout=layout.encode()),
        settings=shared,
        now_s=now_s,
    )
    server = Connection(
        peer="worker",
        path=unpaced(layout),
        welcome=Welcome(session=SESSION, data_port=1),
        settings=shared,
        now_s=now_s,
    )
    server.start(now_s)
    worker.control()  # what `joining` reads
    worker.on_control(server.control(), now_s)
    worker.events()
    there, back = ways
    return BusyPeer(simulation, worker, there), BusyPeer(simulation, server, back)


def transfer(
    payload: Bytes,
    layout: PayloadLayout,
    *,
    tolerance: float = 0.0,
    rule: StopRule | None = None,
    network: Network | None = None,
    congestion: CongestionControl | None = None,
    path: SendingPath | None = None,
    repair: Repair | None = None,
    order: ChunkOrder | None = None,
    began_s: float = 0.0,
    listens_s: float = 0.0,
    number: int = 6,
    leave_out: LeaveOut | None = None,
) -> Outcome:
    """Runs one transfer to its end; fails when it does not end within 200,000 events.

    `path` lets several transfers share one, each with a later `began_s`; before `listens_s` what
    arrives waits for the receiver.
    """
    network = network or Network()
    simulation = Simulation(began_s)
    sending, receiving = connections(
        simulation,
        network.ways(simulation),
        layout,
        repair=repair,
        order=order,
        path=path
        or SendingPath(
            congestion=congestion or FixedRate(rate_bps=10e6), chunk_bytes=layout.chunk_bytes
        ),
    )
    into = layout.new_buffer()
    sending.connection.post_send(number, payload, began_s)
    receiving.connection.post_receive(
        number,
        rule or FractionRule(tolerance),
        into,
        max(began_s, listens_s),
    )
    sending.leave_out, sending.fate = leave_out, network.fate
    sender = sending.connection.outgoing.senders[number]
    receiver = receiving.connection.incoming.receivers[number]
    if listens_s > began_s:
        receiving.be_busy(listens_s)
    link_up(sending, receiving)
    ended_s = simulation.run(done=lambda: bool(sending.events), limit=200_000)
    assert sender.stopped, "both sides wait for ever"
    return Outcome(sender, receiver, into, ended_s)


DELAY_S = 0.005
TIMEOUT_S = 5.0


class Two:
    """A worker that sends and a server that receives."""

    def __init__(
        self,
        *,
        chunks=100,
        loss=0.0,
        repair="passes",
        congestion: str | CongestionControl = "fixed",
        rate_bps=10e6,
        seed=0,
        delay_s=DELAY_S,
        chunk_bytes=16,
        layout=None,
        receive_buffer_bytes=math.inf,
        queue_bytes=math.inf,
        tag_bytes=0,
        simulation=None,
        links=None,
        **settings,
    ) -> None:
        """Without other `links` to the server there is one of no rate limit."""
        self.simulation = simulation or Simulation()
        self.layout = layout or layout_of(chunks, chunk_bytes=chunk_bytes)
        self.link = Link(self.simulation, rate_bps=math.inf, delay_s=delay_s, loss=loss, seed=seed)
        there, back = Way(links or [self.link]), way_back(self.simulation, delay_s)
        if isinstance(congestion, str):
            congestion = CONGESTION_CONTROLS.create(
                congestion, rate_bps=rate_bps, datagram_bytes=wire_bytes(1, chunk_bytes)
            )
        self.path = SendingPath(
            congestion=congestion,
            chunk_bytes=self.layout.chunk_bytes,
            receive_buffer_bytes=receive_buffer_bytes,
            queue_bytes=queue_bytes,
            tag_bytes=tag_bytes,
        )
        self.worker, self.server = connections(
            self.simulation,
            (there, back),
            self.layout,
            repair=REPAIRS.create(repair),
            path=self.path,
            **{"peer_timeout_s": TIMEOUT_S, **settings},
        )
        self.into: dict[int, Bytes] = {}
        self.sent: dict[int, Bytes] = {}
        link_up(self.worker, self.server)

    def send(self, transfer: int, payload: Bytes | None = None) -> None:
        self.sent[transfer] = random_payload(self.layout, transfer) if payload is None else payload
        now_s = self.simulation.now_s
        self.worker.connection.post_send(transfer, self.sent[transfer], now_s)
        self.worker.work()

    def receive(
        self,
        transfer: int,
        tolerance: float = 0.0,
        rule: StopRule | None = None,
        layout: PayloadLayout | None = None,
    ) -> None:
        layout = layout or self.layout
        self.into[transfer] = layout.new_buffer()
        rule = rule or FractionRule(tolerance)
        now_s = self.simulation.now_s
        self.server.connection.post_receive(transfer, rule, self.into[transfer], now_s)
        self.server.work()

    def begin(self, *transfers: int) -> None:
        """Asks for these and sends them."""
        for transfer in transfers:
            self.receive(transfer)
            self.send(transfer)

    def carry(self, *transfers: int) -> None:
        """Begins these, and runs until nothing happens."""
        self.begin(*transfers)
        self.run()

    def run(self, until_s: float = math.inf) -> None:
        self.simulation.run(until_s=until_s, limit=200_000)

    @property
    def intact(self) -> list[int]:
        """The transfers that have arrived whole."""
        return [
            number
            for number, into in self.into.items()
            if number in self.sent and np.array_equal(into, self.sent[number])
        ]


def reports(peer: Peer) -> list[TransferReport]:
    return [event.report for event in peer.events if isinstance(event, TransferDone)]


def ended(peer: Peer) -> list[int]:
    return [event.transfer for event in peer.events if isinstance(event, TransferDone)]


def gone(peer: Peer) -> str:
    reasons = [event.reason for event in peer.events if isinstance(event, PeerGone)]
    return reasons[0] if reasons else ""


def new_sender(
    layout, *, rate_bps=10e6, number=6, path=None, repair=None, order=None, payload=None, now_s=0.0
):
    control = FixedRate(rate_bps=rate_bps)
    return Sender(
        settings=settings_of(layout, repair, order),
        transfer=number,
        payload=random_payload(layout) if payload is None else payload,
        path=path or SendingPath(congestion=control, chunk_bytes=layout.chunk_bytes),
        now_s=now_s,
    )


def new_receiver(layout, *, tolerance=0.0, number=6, repair=None, order=None, **settings):
    into = layout.new_buffer()
    rule = FractionRule(tolerance)
    receiver = Receiver(
        settings=settings_of(layout, repair, order),
        transfer=number,
        into=into,
        now_s=0.0,
        **{"rule": rule, **settings},
    )
    return receiver, into


class Recorder(CongestionControl):
    """Limits as told; keeps what it hears."""

    def __init__(self, *, rate_bps: float = 10e6, window_bytes: float = math.inf) -> None:
        self._limits = rate_bps, window_bytes
        self.sent: list[int] = []
        self.heard: list[Feedback] = []

    @property
    def rate_bps(self) -> float:
        return self._limits[0]

    @property
    def window_bytes(self) -> float:
        return self._limits[1]

    def on_sent(self, sent_bytes: int, now_s: float) -> None:
        self.sent.append(sent_bytes)

    def on_feedback(self, feedback: Feedback) -> None:
        self.heard.append(feedback)


def progress(received, *, now_s=0.0, first_s=0.0, last_s=0.0, probes=0, **fields):
    received = np.asarray(received, np.bool_)
    return Progress(
        received=received,
        received_count=int(received.sum()),
        expected_count=len(received),
        now_s=now_s,
        first_arrival_s=first_s,
        last_arrival_s=last_s,
        probes=probes,
        **fields,
    )


def bitmap(*chunks):
    """The answer to a PROBE that these have come."""
    return ControlMessage(MessageType.BITMAP, 6, pack_arrivals(np.array(chunks, dtype=np.int64)))


def all_frames(layout, number=6):
    sender = new_sender(layout, rate_bps=math.inf, number=number)
    parts = []
    while len(frames := sender.offer(0.0)):
        parts.append(frames.copy())
        sender.sent(len(frames), 0.0)
    return np.concatenate(parts)
