"""What compiled code sends while the driver waits: the same as if each batch had woken it."""

import math

import numpy as np
import pytest

from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.core.wire import ACK_REQUESTED, fields
from testbed.transport.net.sealing import Authentication
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.repair.passes import PassesSender
from tests.transport.routine_parts import CHUNK_BYTES, NEEDS_C, depart, pair, two

pytestmark = NEEDS_C


def offered(connection, times):
    """What goes when each of these times wakes the sender: the sizes, and when it is due then."""
    sizes, due_s = [], []
    for now_s in times:
        frames = connection.offer(now_s)
        sizes.append(len(frames))
        if len(frames):
            connection.outgoing.sent(len(frames), now_s)
        due_s.append(connection.next_deadline_s(now_s))
    return sizes, due_s


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
@pytest.mark.parametrize("queue_bytes", [math.inf, 20_000.0])
@pytest.mark.parametrize("late_s", [0.0, 3e-3, 50e-3])
def test_the_same_batches_go_at_the_same_times_as_if_each_had_woken_the_sender(
    repair, queue_bytes, late_s
):
    random = np.random.default_rng(7)
    ours, theirs = (two(repair=repair) for _ in range(2))
    for parties in (ours, theirs):
        parties.path.pacer._queue_known = not math.isinf(queue_bytes)
        parties.path.pacer._most_late_bytes = queue_bytes / 2
        offered(parties.worker.connection, [0.0])
    connection = ours.worker.connection
    with pair() as (udp, other):
        departing = udp.departing()
        departures = connection.departures()
        waiting = len(departures.chunks) + departures.beyond
        due_s = departures.pacer.next_s(0.0, waiting)
        assert departing.begin(departures, due_s, segmented=udp.segmentation)
        times, ends = [0.0], []
        for _ in range(40):
            now_s = max(times[-1], departing._it.due_s) + random.uniform(0, late_s)
            times.append(now_s)
            depart(departing, now_s)
            ends.append(max(now_s, departing._it.due_s))
        was, batches = departing.end()
        connection.outgoing.departed(was, batches)
        arrived = []
        while len(rows := other.receive()[0]):
            arrived.append(rows.copy())
    sizes, due = offered(theirs.worker.connection, times[1:])
    assert [size for size, _ in batches] == [size for size in sizes if size]
    assert ends == pytest.approx(due, rel=1e-12)
    assert ours.path.pacer.tokens == theirs.path.pacer.tokens
    frames = np.concatenate(arrived)
    first = theirs.path.pacer.quantum
    sent = fields(frames, CHUNK_BYTES)
    np.testing.assert_array_equal(sent["stamp"], np.arange(first, first + len(frames)))
    np.testing.assert_array_equal(
        sent["chunk"], ours.layout.rows(ours.sent[0])[first : first + len(frames)]
    )
    # And afterwards both go on in the same way.
    assert offered(connection, [9.0, 9.5]) == offered(theirs.worker.connection, [9.0, 9.5])
    np.testing.assert_array_equal(ours.path.frames, theirs.path.frames)
    reports = [
        parties.worker.connection.outgoing.senders[0].report("server") for parties in (ours, theirs)
    ]
    for name in ("chunks_sent", "bytes_sent"):
        assert getattr(reports[0], name) == getattr(reports[1], name)


def test_each_datagram_goes_with_its_authentication():
    parties = two(500, rate_bps=1e9)
    with pair(authenticated=True) as (server, udp):
        departing = udp.departing()
        departures = parties.worker.connection.departures()
        assert departing.begin(departures, 0.0, segmented=udp.segmentation)
        arrived: list[np.ndarray] = []
        server.seal = Authentication(bytes(32), is_server=True)  # by hashlib
        for now_s in (0.0, 1.0):
            depart(departing, now_s)
            arrived.append(server.receive()[0].copy())
        assert not server.counters
    frames = np.concatenate(arrived)
    assert len(frames) == departing._it.sent > departures.pacer.quantum
    rows = parties.layout.rows(parties.sent[0])
    assert np.array_equal(frames[:, 16:], rows[: len(frames)])


@pytest.mark.parametrize("repair", ["selective", "streaming"])
def test_no_datagram_goes_unoffered_that_has_to_ask(repair):
    parties = two(200, repair=repair)
    connection = parties.worker.connection
    departures = connection.departures()
    assert 0 < len(departures.chunks) < 200
    connection.outgoing.departed(departures, [(len(departures.chunks), 0.0)])
    assert connection.departures() is None
    asked = []
    for now_s in range(1, 40):
        frames = connection.offer(float(now_s))
        if len(frames):
            asked += (fields(frames, CHUNK_BYTES)["stamp"] >= ACK_REQUESTED).tolist()
            connection.outgoing.sent(len(frames), float(now_s))
    assert asked[: 200 - len(departures.chunks)].count(True) == 1


def test_what_moves_or_may_move_the_sender_is_asked_before_each_batch():
    def departures(change=None, **settings):
        parties = two(**settings)
        if change is not None:
            change(parties)
        return parties.worker.connection.departures()

    def own_rate(parties):
        parties.path.congestion = type("OwnRate", (FixedRate,), {})(rate_bps=1e6)

    def steady_rate(parties):
        parties.path.congestion = type("Steady", (FixedRate,), {"steady": True})(rate_bps=1e6)

    def own_repair(parties):
        own = type("OwnSender", (PassesSender,), {})
        parties.worker.connection.outgoing.senders[0]._repair.__class__ = own

    def another(parties):
        parties.worker.connection.post_send(1, parties.sent[0], 0.0)

    def held(parties):
        message = ControlMessage(MessageType.HOLD, 0)
        parties.worker.connection.on_control(message.encode(), 0.0)

    assert departures() is not None
    assert departures(steady_rate) is not None
    for change in (own_rate, own_repair, another, held):
        assert departures(change) is None
    assert departures(congestion="reno") is None
    assert departures(rate_bps=math.inf) is None


def test_a_socket_that_takes_no_more_ends_the_routine_and_the_rest_is_offered_again():
    parties = two()
    with pair() as (udp, _):
        departing = udp.departing()
        departures = parties.worker.connection.departures()
        departing.begin(departures, 0.0, segmented=udp.segmentation)
        udp._socket.close()
        depart(departing, 1.0)
        assert departing.worked
        assert departing.end()[1] == []
