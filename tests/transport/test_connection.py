"""A connection in virtual time: numbering, liveness, early data, several transfers in flight."""

import math

import numpy as np
import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.party import Party, Way, link_up
from testbed.transport import SendingPath
from testbed.transport.core.connection import ConnectionState
from testbed.transport.core.events import ChunkBatch, PeerGone, TransferDone
from testbed.transport.core.messages import PASS, ControlMessage, MessageType
from testbed.transport.core.tolerance import FractionRule
from testbed.transport.core.wire import fields, wire_bytes
from testbed.transport.policies.congestion import CONGESTION_CONTROLS
from testbed.transport.policies.repair import REPAIRS
from testbed.transport.policies.repair.selective import AcknowledgingReceiver
from tests.transport.transfer_parts import all_frames
from tests.transport.virtual import Bytes, connections, layout_of, random_payload

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
        congestion="fixed",
        rate_bps=10e6,
        seed=0,
        **settings,
    ) -> None:
        self.simulation = Simulation()
        self.layout = layout_of(chunks)
        self.link = Link(self.simulation, rate_bps=math.inf, delay_s=DELAY_S, loss=loss, seed=seed)
        there, back = Way([self.link]), Way([], control_delay_s=DELAY_S)
        self.path = SendingPath(
            congestion=CONGESTION_CONTROLS.create(
                congestion, rate_bps=rate_bps, datagram_bytes=wire_bytes(1, 16)
            ),
            chunk_bytes=self.layout.chunk_bytes,
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

    def send(self, transfer: int) -> None:
        self.sent[transfer] = random_payload(self.layout, transfer)
        now_s = self.simulation.now_s
        self.worker.connection.post_send(transfer, self.sent[transfer], now_s)
        self.worker.work()

    def receive(self, transfer: int, tolerance: float = 0.0) -> None:
        self.into[transfer] = self.layout.new_buffer()
        rule = FractionRule(chunk_count=self.layout.chunk_count, tolerance=tolerance)
        now_s = self.simulation.now_s
        self.server.connection.post_receive(transfer, rule, self.into[transfer], now_s)
        self.server.work()

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


def ended(party: Party) -> list[int]:
    return [event.transfer for event in party.events if isinstance(event, TransferDone)]


def gone(party: Party) -> str:
    """Why the connection has ended, empty while it has not."""
    reasons = [event.reason for event in party.events if isinstance(event, PeerGone)]
    return reasons[0] if reasons else ""


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_transfers_in_flight_share_the_path_and_arrive_in_their_buffers(repair, loss):
    two = Two(loss=loss, repair=repair)
    for number in (0, 2, 4):
        two.receive(number)
        two.send(number)
    two.run()
    assert two.intact == [0, 2, 4]
    assert sorted(ended(two.worker)) == sorted(ended(two.server)) == [0, 2, 4]
    assert two.path.in_flight == 0


def test_the_earlier_transfer_has_the_path_first():
    two = Two(chunks=2000)
    for number in (0, 2):
        two.receive(number)
        two.send(number)
    two.run()
    assert ended(two.server) == [0, 2]
    reports = [event.report for event in two.server.events if isinstance(event, TransferDone)]
    assert reports[0].ended_s <= reports[1].began_s


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
def test_data_that_come_before_they_are_asked_for_are_sent_once(repair):
    two = Two(repair=repair)
    two.send(0)
    two.run(until_s=1.0)
    assert ended(two.server) == []
    two.receive(0)
    two.run()
    assert two.intact == [0]
    done = next(event for event in two.worker.events if isinstance(event, TransferDone))
    assert done.report.chunks_sent == 100


def test_early_data_of_several_transfers_wait_side_by_side():
    two = Two(loss=0.2)
    for number in (0, 2, 4, 6):
        two.send(number)
    two.run(until_s=1.0)
    for number in (0, 2, 4, 6):
        two.receive(number)
    two.run()
    assert two.intact == [0, 2, 4, 6]


def test_more_early_transfers_than_may_be_in_flight_cost_repairs_and_no_memory():
    two = Two(transfers_in_flight=2)
    two.send(0)
    two.send(2)
    two.run(until_s=0.5)
    two.receive(0)
    two.run(until_s=0.6)
    with pytest.raises(ValueError, match="numbers must ascend"):
        two.receive(0)
    two.send(4)
    with pytest.raises(ValueError, match="2 are in flight already; valid: at most 2"):
        two.send(6)


def test_a_sender_that_is_told_to_hold_waits_as_long_as_the_receiver_lives():
    two = Two()
    two.send(0)
    two.run(until_s=20 * TIMEOUT_S)
    assert two.worker.connection.lost is None
    two.receive(0)
    two.run(until_s=21 * TIMEOUT_S)
    assert two.intact == [0]
    # A receiver that does not answer any more is given up.
    two.send(2)
    two.run(until_s=25 * TIMEOUT_S)
    two.server.be_busy(1e6)
    two.run(until_s=30 * TIMEOUT_S)
    assert gone(two.worker) == f"silent for {TIMEOUT_S:g} s"


def test_a_transfer_that_the_receiver_skips_is_an_error_on_both_sides():
    two = Two()
    two.receive(4)
    two.send(2)
    two.run()
    assert "sends transfer 2, which this side has skipped: it is at 4" in gone(two.server)
    assert "it gave up: it broke the protocol: it sends transfer 2" in gone(two.worker)
    assert ended(two.worker) == ended(two.server) == []


def test_a_receive_that_skips_what_came_early_is_an_error_on_both_sides():
    two = Two()
    two.send(2)
    two.run(until_s=1.0)
    two.receive(4)
    two.run()
    assert "skipped: it is at 4" in gone(two.server)
    assert "it gave up" in gone(two.worker)


def test_a_receiver_says_which_other_transfer_comes_instead():
    two = Two()
    two.receive(2)
    two.send(4)
    two.run()
    assert gone(two.server) == (
        f"it sends transfer 4 instead: no new chunk of transfer 2 for {TIMEOUT_S:g} s"
    )


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
def test_where_control_works_and_data_do_not_arrive_the_transfer_fails_and_little_is_sent(repair):
    two = Two(repair=repair, chunks=1000)
    two.worker.way.blocked = True
    two.receive(0)
    two.send(0)
    two.run()
    assert two.simulation.now_s < 2 * TIMEOUT_S
    for party in (two.worker, two.server):
        assert "control works, data does not arrive" in gone(party)
    sent = sum(count for at_s, count in two.worker.batches if at_s > 2.0)
    at_full_rate = (TIMEOUT_S - 2.0) * 10e6 / 8 / two.path.datagram_wire_bytes
    assert 0 < sent < at_full_rate / 50


def test_a_path_that_is_blocked_for_a_while_delays_a_transfer_by_little_more():
    two = Two(chunks=1000)
    two.worker.way.blocked = True
    two.receive(0)
    two.send(0)
    two.run(until_s=3.0)
    two.worker.way.blocked = False
    two.run()
    assert two.intact == [0]
    (done,) = (event for event in two.worker.events if isinstance(event, TransferDone))
    assert done.report.ended_s < 3.0 + 1.5


def test_a_peer_that_sends_nothing_is_given_up_with_the_reason():
    two = Two()
    two.receive(0)
    two.run()
    assert gone(two.server) == f"silent: no new chunk of transfer 0 for {TIMEOUT_S:g} s"


def test_patience_runs_from_the_last_new_chunk():
    two = Two(chunks=100, rate_bps=100 * 8 * 74 / (3 * TIMEOUT_S))
    two.receive(0)
    two.send(0)
    two.run()
    assert two.intact == [0]
    assert two.simulation.now_s > 2 * TIMEOUT_S


def test_a_stream_that_ends_ends_what_is_under_way_and_nothing_that_is_done():
    two = Two()
    two.receive(0)
    two.send(0)
    two.run()
    two.worker.cut()
    two.run()
    assert ended(two.worker) == ended(two.server) == [0]
    assert two.server.connection.state is ConnectionState.LOST
    assert gone(two.server) == "the connection was closed"
    two.server.connection.on_datagrams(np.zeros((1, 32), dtype=np.uint8), 99.0)
    two.server.connection.on_control(b"anything", 99.0)
    assert two.server.connection.control() == b""
    assert two.server.connection.next_deadline_s(99.0) is None


def test_arrivals_are_told_chunk_by_chunk_when_that_is_wanted():
    two = Two(loss=0.3, chunk_events=True)
    two.receive(0)
    two.send(0)
    two.run()
    told = [event.chunks for event in two.server.events if isinstance(event, ChunkBatch)]
    assert sorted(np.concatenate(told)) == list(range(100))


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
    two.server.listen(message.encode())
    two.run()
    assert "it broke the protocol" in gone(two.server)
    assert "it gave up: it broke the protocol" in gone(two.worker)


def test_a_kind_of_message_that_nobody_takes_ends_the_connection(monkeypatch):
    two = Two()
    two.worker.listen(ControlMessage(MessageType.PONG).encode())
    assert two.worker.connection.lost is None
    monkeypatch.setattr("testbed.transport.core.connection._ANSWERS", frozenset())
    two.worker.listen(ControlMessage(MessageType.HOLD).encode())
    assert "HOLD, which a connection does not take" in str(two.worker.connection.lost)


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


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
@pytest.mark.parametrize("congestion", ["cubic", "reno", "bbr", "ltp"])
@pytest.mark.parametrize("loss", [0.1, 0.3])
def test_an_early_transfer_takes_no_window_from_the_one_before_it(repair, congestion, loss):
    two = Two(repair=repair, loss=loss, chunks=200, congestion=congestion)
    two.server.on_event = lambda event: two.receive(2) if 2 not in two.into else None
    two.receive(0)
    two.send(0)
    two.send(2)
    two.run(until_s=60.0)
    assert two.intact == [0, 2], (gone(two.worker), gone(two.server))


def test_two_sides_that_both_send_and_do_not_receive_are_told_so():
    two = Two()
    two.send(0)
    payload = random_payload(two.layout)
    two.server.connection.post_send(1, payload, 0.0)
    two.server.work()
    two.run()
    reason = f"both sides send and neither receives, for {TIMEOUT_S:g} s"
    assert reason in (gone(two.worker), gone(two.server))
    assert two.simulation.now_s < 3 * TIMEOUT_S


def test_a_side_keeps_no_more_early_transfers_than_it_allows_in_flight():
    two = Two(transfers_in_flight=2)
    frames = all_frames(two.layout, number=2)[:5].copy()
    for number in range(2, 40):
        fields(frames, two.layout.chunk_bytes)["transfer"] = number
        two.server.connection.on_datagrams(frames, 0.0)
    assert sorted(two.server.connection.incoming._early) == [2, 3]
    # The one that will be needed first has room, whatever came before it.
    fields(frames, two.layout.chunk_bytes)["transfer"] = 1
    two.server.connection.on_datagrams(frames, 0.0)
    assert sorted(two.server.connection.incoming._early) == [1, 2]


def test_a_sender_that_asks_again_unanswered_breaks_the_protocol():
    two = Two()
    two.receive(0)
    two.send(0)
    probe = ControlMessage(MessageType.PROBE, 0, PASS.pack(1, True)).encode()
    two.server.connection.on_control(2 * probe, 0.0)
    assert "awaits its answer" in (two.server.connection.lost or "")


def test_copies_without_end_take_no_memory_at_a_receiver_that_acknowledges():
    two = Two(repair="streaming", transfers_in_flight=1)
    frames = all_frames(two.layout, number=0)[:1]
    for _ in range(2000):
        two.server.connection.on_datagrams(frames, 0.0)
    repair = two.server.connection.incoming._early[0]._repair
    assert isinstance(repair, AcknowledgingReceiver)
    assert sum(map(len, repair._pending)) < 1000
