"""A server and its workers in virtual time: who may join, and whatever may happen."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.simulate.endpoint import World
from testbed.simulate.engine import Simulation
from testbed.simulate.peer import Way
from testbed.simulate.tasks import Tasks
from testbed.transport import SendingPath
from testbed.transport.congestion import CONGESTION_CONTROLS
from testbed.transport.connection import ConnectionState
from testbed.transport.events import PeerGone, Started, TransferDone
from testbed.transport.joining import HELLO_WITHIN_S, SERVER, Newcomer
from testbed.transport.messages import Hello
from testbed.transport.order import ORDERS
from testbed.transport.repair import REPAIRS
from testbed.transport.tolerance import FractionRule, required_chunks
from tests.transport.virtual import (
    SESSION,
    TIMEOUT_S,
    BusyPeer,
    DoublingLink,
    layout_of,
    random_payload,
    settings_of,
)

# Joining.


LAYOUT = layout_of(3)
HELLO = Hello(session=SESSION, name="worker-1", terms="x", layout=LAYOUT.encode())
ENCODED = HELLO.message().encode()


@pytest.mark.parametrize("split", [0, 1, 12, 15, 16, len(ENCODED) - 1])
def test_a_hello_is_read_once_it_is_complete(split):
    newcomer = Newcomer(SESSION, 3.0)
    assert newcomer.until_s == 3.0 + HELLO_WITHIN_S
    if split:
        assert newcomer.feed(ENCODED[:split]) is None
    assert newcomer.feed(ENCODED[split:]) == HELLO


def started(peer):
    return any(isinstance(event, Started) for event in peer.events)


def test_workers_may_begin_once_all_have_joined_however_long_the_last_one_takes():
    cluster = cluster_of("a", "b")
    early = cluster.connect("a")
    cluster.simulation.run(until_s=50 * TIMEOUT_S)
    assert early.connection.state is ConnectionState.WAITING
    assert not started(early)
    late = cluster.connect("b")
    cluster.simulation.run()
    assert started(early) and started(late)


def test_a_worker_that_the_server_believes_alive_may_join_again():
    cluster = cluster_of("a")
    cluster.connect("a")
    cluster.simulation.run()
    former = cluster.servers["a"]
    again = cluster.connect("a")
    cluster.simulation.run()
    assert former.connection.lost == "it has joined again"
    assert started(again)


def test_a_worker_that_joins_again_goes_on_with_the_next_transfer():
    cluster = cluster_of("a")
    layout = layout_of(40)
    cluster.connect("a")
    cluster.simulation.run()
    cluster.workers["a"].connection.post_send(0, random_payload(layout), 0.0)
    cluster.workers.pop("a").cut("the connection was closed")
    cluster.simulation.run()
    cluster.connect("a")
    cluster.simulation.run()
    now_s, into, payload = cluster.simulation.now_s, layout.new_buffer(), random_payload(layout, 2)
    rule = FractionRule(0.0)
    cluster.servers["a"].connection.post_receive(2, rule, into, now_s)
    cluster.workers["a"].connection.post_send(2, payload, now_s)
    cluster.workers["a"].work()
    cluster.simulation.run()
    assert np.array_equal(into, payload)


# Anything, at random.


class Cluster(World):
    """Workers that may join again, and both sides of the latest connection of each."""

    def __init__(self, simulation, ways, settings, congestion):
        super().__init__(simulation, Tasks(simulation), ways, {})
        self.workers = {}
        self._settings = dict.fromkeys([SERVER, *ways], settings)
        self._congestion = congestion

    def connect(self, name):
        worker = self.workers[name] = super().connect(name)
        return worker

    def _path(self, side):
        control = CONGESTION_CONTROLS.create(self._congestion, rate_bps=10e6, datagram_bytes=74)
        return SendingPath(congestion=control, chunk_bytes=16)

    def _make_peer(self, side, connection, way):
        return BusyPeer(self.simulation, connection, way)


def cluster_of(
    *names,
    layout=None,
    repair="passes",
    order="in-order",
    congestion="fixed",
    control_datagrams=False,
    **changes,
):
    """A cluster; `changes` are those of its links."""
    simulation = Simulation()
    settings = settings_of(
        layout or layout_of(40),
        REPAIRS.create(repair),
        ORDERS.create(order, seed=1),
        peer_timeout_s=TIMEOUT_S,
        control_datagrams=control_datagrams,
    )

    def way():
        link = DoublingLink(simulation, **{"rate_bps": math.inf, "delay_s": 0.002, **changes})
        return Way([link])

    return Cluster(simulation, {name: (way(), way()) for name in names}, settings, congestion)


harm = st.floats(0.0, 0.6)
span = st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 1.5))
# A network, a protocol, and what the sides do when.
CHOICES = {
    "seed": st.integers(0, 2**16),
    "repair": st.sampled_from(["passes", "selective", "streaming"]),
    "order": st.sampled_from(["in-order", "shuffled"]),
    "congestion": st.sampled_from(["fixed", "reno", "bbr"]),
    "chunks": st.integers(1, 40),
    "tolerance": st.sampled_from([0.0, 0.1, 0.5]),
    "loss": harm,
    "duplicate": harm,
    "corrupt": st.sampled_from([0.0, 0.2]),
    "jitter_s": st.sampled_from([0.0, 0.01]),
    "queue": st.sampled_from([math.inf, 300.0]),
    "sends": st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3),
    "receives": st.lists(st.floats(0.0, 3.0), min_size=1, max_size=3),
    "busy": st.lists(span, max_size=2),
    "blocked": st.one_of(st.none(), span),
    "killed": st.one_of(st.none(), st.floats(0.0, 2.0)),
    "skips": st.booleans(),
    # Which part of the datagrams with control messages is lost; None: they go on the stream.
    "control_lost": st.sampled_from([None, 0.0, 0.5, 0.9]),
}
# Nothing happens but one transfer.
PLAIN = {
    **dict.fromkeys(("seed", "tolerance", "loss", "duplicate", "corrupt", "jitter_s"), 0),
    "repair": "passes",
    "order": "in-order",
    "congestion": "fixed",
    "chunks": 10,
    "queue": math.inf,
    "sends": [0.0],
    "receives": [0.0],
    "busy": [],
    "blocked": None,
    "killed": None,
    "skips": False,
    "control_lost": None,
}


def run_schedule(schedule):
    """Runs it to its end and checks what must hold; returns the events of both sides."""
    layout = layout_of(schedule["chunks"])
    random = np.random.default_rng(schedule["seed"])
    cluster = cluster_of(
        "a",
        layout=layout,
        **{key: schedule[key] for key in ("repair", "order", "congestion")},
        rate_bps=20e6,
        queue_bytes=schedule["queue"],
        **{key: schedule[key] for key in ("loss", "jitter_s", "duplicate", "seed")},
        control_datagrams=schedule["control_lost"] is not None,
    )
    simulation = cluster.simulation

    def flip(frame):
        if random.random() >= schedule["corrupt"]:
            return frame
        frame = frame.copy()
        # Not what makes a datagram another valid one: that is for the checksums.
        frame[random.choice([0, 1, 2, 3, 8, 9, 10, 12, 13])] ^= 1 << random.integers(8)
        return frame

    worker = cluster.connect("a")
    worker.fate = flip
    simulation.run(until_s=0.1, limit=10_000)
    server = cluster.servers["a"]

    def control_fate():
        copies = 1 + (random.random() < schedule["duplicate"])
        copies *= random.random() >= (schedule["control_lost"] or 0.0)
        return [schedule["jitter_s"] * random.random() for _ in range(copies)]

    worker.control_fate = server.control_fate = control_fate
    buffers, payloads = {}, {}

    def send(number):
        payloads[number] = random_payload(layout, number)
        if worker.connection.lost is None:
            worker.connection.post_send(number, payloads[number], simulation.now_s)
            worker.work()

    def receive(number):
        buffers[number] = layout.new_buffer()
        rule = FractionRule(schedule["tolerance"])
        if server.connection.lost is None:
            server.connection.post_receive(number, rule, buffers[number], simulation.now_s)
            server.work()

    step = 3 if schedule["skips"] else 2
    for place, at_s in enumerate(sorted(schedule["sends"])):
        simulation.at(0.1 + at_s, partial(send, 2 * place))
    for place, at_s in enumerate(sorted(schedule["receives"])):
        simulation.at(0.1 + at_s, partial(receive, step * place))
    for peer, (at_s, for_s) in zip((worker, server), schedule["busy"], strict=False):
        simulation.at(0.1 + at_s, partial(peer.be_busy, 0.1 + at_s + for_s))
    if schedule["blocked"] is not None:
        at_s, for_s = schedule["blocked"]
        for changes_s, fate in ((at_s, lambda frame: None), (at_s + for_s, flip)):
            simulation.at(0.1 + changes_s, partial(setattr, worker, "fate", fate))
    if schedule["killed"] is not None:
        simulation.at(0.1 + schedule["killed"], worker.cut)
    simulation.run(until_s=400.0, limit=100_000)

    required = required_chunks(layout.chunk_count, schedule["tolerance"])
    done = {e.transfer: e.report for e in server.events if isinstance(e, TransferDone)}
    for number, into in buffers.items():
        rows = layout.rows(into)
        if number in done:
            report = done[number]
            assert report.chunks_received is not None and report.received is not None
            assert report.chunks_received >= required
            assert report.received.sum() == report.chunks_received
            assert np.array_equal(
                rows[report.received], layout.rows(payloads[number])[report.received]
            )
            assert not rows[~report.received].any()
    may_end = (
        schedule["killed"] is not None
        or schedule["blocked"] is not None
        or schedule["skips"]
        or len(schedule["receives"]) > len(schedule["sends"])
    )
    for peer, numbers in ((worker, payloads), (server, buffers)):
        connection = peer.connection
        over = {e.transfer for e in peer.events if isinstance(e, TransferDone)}
        # Nothing hangs: what was begun has ended, or the connection has, or nobody asked for it.
        if connection.lost is None:
            under_way = set(numbers) - over
            if peer is worker:
                assert not under_way or connection.outgoing.senders[min(under_way)].held
            else:
                assert not under_way
        else:
            assert sum(isinstance(e, PeerGone) for e in peer.events) == 1
            # A connection that nothing hinders for long does not end by itself.
            assert may_end, connection.lost
    assert simulation.events < 50_000
    return worker.events, server.events


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries(CHOICES))
def test_no_schedule_hangs_or_delivers_a_wrong_byte_or_stops_above_its_tolerance(schedule):
    run_schedule(schedule)


def busy(seed, congestion, chunks, loss, duplicate, *absences):
    return {
        "seed": seed,
        "repair": "selective",
        "congestion": congestion,
        "chunks": chunks,
        "loss": loss,
        "duplicate": duplicate,
        "corrupt": 0.2,
        "receives": [0.5],
        "busy": absences,
    }


@pytest.mark.parametrize(
    "schedule",
    [
        busy(109, "reno", 30, 0.44, 0.0, (0.0, 1.0), (0.01, 1.375)),
        busy(199, "bbr", 26, 0.55, 0.3, (0.0, 1.0), (0.0, 1.149)),
        busy(135, "bbr", 38, 0.38, 0.3, (0.0, 0.0), (0.01, 1.248)),
        busy(544, "reno", 20, 0.48, 0.3, (0.0, 1.0), (0.3, 1.371)),
        # What waited in a socket gives no rate: bbr would send nearly nothing after it.
        *(
            busy(seed, "bbr", 11, 0.5, 0.5, (0.0, 1.5))
            | {"corrupt": 0.0, "queue": 300.0, "sends": [0.0, 0.0], "receives": [0.0, 0.0]}
            for seed in (1, 8, 168)
        ),
        {  # The worker is busy for a second in which one try failed, as half of them do.
            "seed": 98,
            "chunks": 1,
            "loss": 0.5,
            "duplicate": 0.5,
            "sends": [0.0, 0.0],
            "receives": [0.0, 0.5],
            "busy": [(0.0, 0.0), (0.5, 1.0)],
        },
    ],
)
def test_absences_do_not_slow_a_transfer_down_until_it_is_given_up(schedule):
    schedule = PLAIN | schedule
    _, events = run_schedule(schedule)
    done = sum(isinstance(event, TransferDone) for event in events)
    assert done == len(schedule["receives"])
