"""A connection in virtual time: numbering, liveness, several transfers in flight."""

import numpy as np
import pytest

from testbed.transport.congestion import FixedRate
from testbed.transport.connection import Connection, ConnectionState
from testbed.transport.events import Joined, PeerGone, TransferDone
from testbed.transport.messages import (
    KEY_BYTES,
    PASS,
    ControlMessage,
    Hello,
    MessageType,
    Welcome,
    reason_message,
)
from testbed.transport.sending_path import SendingPath
from testbed.transport.settings import REMEMBERED
from testbed.transport.tolerance import FractionRule
from testbed.transport.wire import fields
from tests.transport.test_fast_path import BOTH
from tests.transport.virtual import (
    SESSION,
    Two,
    all_frames,
    ended,
    gone,
    layout_of,
    random_payload,
    settings_of,
)


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
def test_transfers_in_flight_leave_the_path_as_they_end(repair):
    two = Two(loss=0.3, repair=repair)
    two.carry(0, 2, 4)
    assert two.intact == [0, 2, 4]
    assert two.path.in_flight == 0


def test_the_earlier_transfer_has_the_path_first():
    two = Two(chunks=2000)
    two.carry(0, 2)
    assert ended(two.server) == [0, 2]
    reports = [event.report for event in two.server.events if isinstance(event, TransferDone)]
    assert reports[0].ended_s <= reports[1].began_s


@pytest.mark.parametrize("early", [True, False])
def test_a_transfer_that_the_receiver_skips_is_an_error_on_both_sides(early):
    two = Two()
    if not early:
        two.receive(4)
    two.send(2)
    if early:
        two.run(until_s=1.0)
        two.receive(4)
    two.run()
    assert "skipped: it is at 4" in gone(two.server)
    assert "it gave up" in gone(two.worker)
    assert ended(two.worker) == ended(two.server) == []


def having_received(numbers):
    """The server's side after these transfers."""
    two = Two(chunks=1)
    for number in numbers:
        two.receive(number)
        two.server.connection.on_datagrams(all_frames(two.layout, number=number), 0.0)
    return two.server.connection


def probe_of(number):
    return ControlMessage(MessageType.PROBE, number, PASS.pack(1, 1)).encode()


@pytest.mark.parametrize("later", [1, REMEMBERED - 1, REMEMBERED, 3 * REMEMBERED])
def test_a_probe_may_come_late_however_many_transfers_have_finished_since(later):
    connection = having_received(range(1 + later))
    connection.on_control(probe_of(0), 0.0)
    assert connection.lost is None
    assert connection.counters["stale-control"] == 1


@pytest.mark.parametrize("before_last", [1, 2 * REMEMBERED - 1])
def test_a_transfer_that_was_skipped_is_an_error_while_its_neighbours_are_remembered(before_last):
    last = 6 * REMEMBERED
    connection = having_received(range(0, last + 1, 2))
    connection.on_control(probe_of(last - before_last), 0.0)
    why = f"it sends transfer {last - before_last}, which this side has skipped: it is at {last}"
    assert why in str(connection.lost)


def test_a_stream_that_ends_ends_what_is_under_way_and_nothing_that_is_done():
    two = Two()
    two.carry(0)
    two.worker.cut()
    two.run()
    assert ended(two.worker) == ended(two.server) == [0]
    assert two.server.connection.state is ConnectionState.LOST
    assert gone(two.server) == "the connection was closed"
    two.server.connection.on_datagrams(np.zeros((1, 32), dtype=np.uint8), 99.0)
    two.server.connection.on_control(b"anything", 99.0)
    assert two.server.connection.control() == b""
    assert two.server.connection.next_deadline_s(99.0) is None


@pytest.mark.parametrize(
    "message",
    [
        ControlMessage(MessageType.READY),
        ControlMessage(MessageType.ANNOUNCE, body=b"x"),
        ControlMessage(MessageType.STOP, 3),
        ControlMessage(MessageType.HOLD, 3),
        ControlMessage(MessageType.HELLO, body=bytes(12)),
    ],
)
def test_what_a_worker_may_not_say_ends_the_connection_with_the_reason_on_both_sides(message):
    two = Two()
    two.server.on_control(message.encode())
    two.run()
    assert "it broke the protocol" in gone(two.server)
    assert "it gave up: it broke the protocol" in gone(two.worker)


@pytest.mark.parametrize(
    ("kind", "words"), [(MessageType.REFUSED, "it refused"), (MessageType.FAILED, "it gave up")]
)
def test_a_server_that_ends_the_connection_is_quoted_and_not_answered(kind, words):
    connection = Two().worker.connection
    connection.on_control(reason_message(kind, "the layouts differ").encode(), 0.0)
    assert connection.lost == f"{words}: the layouts differ"
    assert connection.events() == [PeerGone(f"{words}: the layouts differ")]
    assert (connection.state, connection.control()) == (ConnectionState.LOST, b"")


@pytest.mark.parametrize("fast_path", BOTH)
@pytest.mark.parametrize("early", [False, True])
def test_a_read_only_buffer_is_refused_and_stays_as_it_was(fast_path, early):
    two = Two(fast_path=fast_path)
    rule = FractionRule(0)
    kept = two.layout.new_buffer().tobytes()
    two.send(0)
    two.run(until_s=1.0 if early else 0.0)
    into = np.frombuffer(kept, dtype=np.uint8)
    with pytest.raises(ValueError, match="a read-only buffer; valid: one to be written into"):
        two.server.connection.post_receive(0, rule, into, two.simulation.now_s)
    two.run(until_s=2.0)
    assert kept == bytes(len(kept))
    two.receive(0)
    two.run()
    assert two.intact == [0]


def waiting_worker():
    settings = settings_of(layout_of(1))
    hello = Hello(session=SESSION, name="worker-1")
    path = SendingPath(congestion=FixedRate(rate_bps=1e6), chunk_bytes=16)
    return Connection(peer="server", settings=settings, path=path, hello=hello, now_s=0.0)


def test_a_worker_that_is_welcomed_is_told_the_servers_port_and_its_key():
    connection = waiting_worker()
    welcome = Welcome(session=SESSION, data_port=47000, key=bytes(range(KEY_BYTES)))
    connection.on_control(welcome.message().encode(), 0.0)
    assert connection.events() == [Joined(47000, bytes(range(KEY_BYTES)))]
    assert connection.state is ConnectionState.WAITING


def test_a_welcome_to_another_session_ends_the_connection():
    connection = waiting_worker()
    connection.on_control(Welcome(session=SESSION + 1, data_port=1).message().encode(), 0.0)
    assert connection.lost == "it broke the protocol: WELCOME of another session"


def test_what_comes_for_a_transfer_that_has_ended_is_stale_and_for_a_later_one_is_kept():
    two = Two(chunks=3)
    two.receive(2)
    for number in (2, 1, 3):
        two.server.connection.on_datagrams(all_frames(two.layout, number=number), 1.0)
        two.server.connection.on_datagrams(all_frames(two.layout, number=number)[:1], 1.0)
    assert two.server.connection.counters == {"stale-transfer": 1 + 4}
    two.receive(3)
    assert ended(two.server) == [2, 3]


def test_a_batch_with_datagrams_of_two_transfers_serves_both():
    two = Two(chunks=3)
    for number in (0, 2):
        two.receive(number)
    first, second = (all_frames(two.layout, number=number) for number in (0, 2))
    mixed = np.stack([first, second], axis=1).reshape(6, -1)
    two.server.connection.on_datagrams(mixed, 1.0)
    done = [event for event in two.server.connection.events() if isinstance(event, TransferDone)]
    assert [event.transfer for event in done] == [0, 2]
    assert all(np.array_equal(two.into[number], random_payload(two.layout)) for number in (0, 2))


@pytest.mark.parametrize("ours", [True, False])
def test_a_batch_of_two_transfers_shows_a_living_peer_if_any_of_it_is_the_peers(ours):
    two = Two(chunks=3)
    two.receive(0)
    frames = np.concatenate([all_frames(two.layout, number=number)[:1] for number in (0, 2)])
    session = fields(frames, two.layout.chunk_bytes)["session"]
    session[1] += 1
    session[0] += not ours
    heard = two.server.connection.incoming.on_datagrams(
        frames, 1.0, waited=False, may_be_early=True
    )
    assert heard is ours
    assert two.server.connection.counters["wrong-session"] == 1


def test_a_flood_of_pings_is_answered_and_kept_nowhere():
    two = Two()
    two.server.connection.on_control(ControlMessage(MessageType.PING).encode() * 1000, 0.0)
    assert len(two.server.connection.control()) == 12 * 1000
    assert two.server.connection.control() == b""


def test_probes_for_ever_more_transfers_are_refused():
    two = Two()
    for number in range(200):
        probe = ControlMessage(MessageType.PROBE, number, PASS.pack(1, 1))
        two.server.connection.on_control(probe.encode(), 0.0)
    assert two.server.connection.lost is not None
    assert "nobody asked for" in two.server.connection.lost


@pytest.mark.parametrize("repair", ["passes", "streaming"])
def test_replayed_datagrams_are_no_sign_of_life_and_earn_no_answer(repair):
    parties = Two(chunks=30_000, repair=repair, rate_bps=1e9)
    sent = all_frames(parties.layout, number=0)
    parties.receive(0)
    connection = parties.server.connection
    for first in range(0, 20_000, 500):
        connection.on_datagrams(sent[first : first + 500], 1.0 + first * 1e-6)
        connection.control()
    (receiver,) = connection.incoming.receivers.values()
    heard_s, taken = connection._liveness.heard_s, receiver.valid_datagrams
    for second in range(2, 50):
        connection.on_datagrams(sent[1_990:2_010], float(second))
        assert connection.control() == b""
    assert (connection._liveness.heard_s, receiver.valid_datagrams) == (heard_s, taken)
    assert receiver.ignored["replayed"] == 48 * 20
    connection.on_datagrams(sent[20_000:20_500], 50.0)
    assert receiver.received_count == 20_500
