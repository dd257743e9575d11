"""When one side gives up the other, and when it cuts its chunks instead."""

import math

import numpy as np
import pytest

from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.events import Announced
from testbed.transport.core.messages import SENT, ControlMessage, MessageType
from testbed.transport.core.outgoing import SizeSearch
from testbed.transport.core.wire import MOST_PIECES, wire_bytes
from tests.fuzz.connections import Victim
from tests.transport.virtual import TIMEOUT_S, Two, ended, gone, random_payload, reports


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
    two.worker.way.fate = lambda frame: None
    two.carry(0)
    assert two.simulation.now_s < 2 * TIMEOUT_S
    for party in (two.worker, two.server):
        assert "control works, data does not arrive" in gone(party)
    sent = sum(count for at_s, count in two.worker.batches if at_s > 2.0)
    at_full_rate = (TIMEOUT_S - 2.0) * 10e6 / 8 / two.path.datagram_wire_bytes
    assert 0 < sent < at_full_rate / 50


def test_a_path_that_is_blocked_for_a_while_delays_a_transfer_by_little_more():
    two = Two(chunks=1000)
    two.worker.way.fate = lambda frame: None
    two.begin(0)
    two.run(until_s=3.0)
    two.worker.way.fate = None
    two.run()
    assert two.intact == [0]
    (report,) = reports(two.worker)
    assert report.ended_s < 3.0 + 1.5


@pytest.mark.parametrize("awaited", [(0,), (0, 2)])
def test_a_peer_that_sends_nothing_is_given_up_and_the_first_transfer_is_named(awaited):
    two = Two()
    for number in awaited:
        two.receive(number)
    two.run()
    assert gone(two.server) == f"silent: no new chunk of transfer 0 for {TIMEOUT_S:g} s"


def test_patience_runs_from_the_last_new_chunk():
    two = Two(chunks=100, rate_bps=100 * 8 * 74 / (3 * TIMEOUT_S))
    two.carry(0)
    assert two.intact == [0]
    assert two.simulation.now_s > 2 * TIMEOUT_S


@pytest.mark.parametrize(
    ("awaited", "sent", "intact", "reason", "longest_s"),
    [
        # A transfer is awaited while those before it arrive,
        (range(4), range(4), [0, 1, 2, 3], None, math.inf),
        # and one that never comes is given up, wherever it stands.
        ((0, 1), (0,), [0], f"no new chunk of transfer 1 for {TIMEOUT_S:g} s", 2 * TIMEOUT_S),
        ((0, 1, 2), (1, 2), [1], "it sends nothing: no new chunk of transfer 0", 2 * TIMEOUT_S),
    ],
)
def test_patience_is_with_each_of_several_transfers(awaited, sent, intact, reason, longest_s):
    chunks = 1500
    # Each transfer takes less than the patience, several take more.
    two = Two(chunks=chunks, rate_bps=chunks * 8 * wire_bytes(1, 16) / (0.6 * TIMEOUT_S))
    for number in awaited:
        two.receive(number)
    for number in sent:
        two.send(number)
    two.run()
    assert two.intact == intact
    assert reason in gone(two.server) if reason else not gone(two.server)
    assert TIMEOUT_S * (1 if reason else 2) < two.simulation.now_s < longest_s


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


def test_an_announcement_is_awaited_as_long_as_the_server_lives():
    two = Two()
    connection = two.worker.connection
    connection.await_announcement(0.0)
    two.worker.work()
    two.run(until_s=20 * TIMEOUT_S)
    assert connection.lost is None
    two.server.connection.announce(b"at last")
    two.server.work()
    two.run()
    assert two.worker.events == [Announced(b"at last")]
    assert connection.next_deadline_s(two.simulation.now_s) is None  # it asks no more


@pytest.mark.parametrize("dies_s", [0.0, 6 * TIMEOUT_S])
def test_a_server_that_dies_before_its_announcement_is_given_up(dies_s):
    """Patience runs from when the announcement was awaited."""
    two = Two()
    awaited_s = 3 * TIMEOUT_S
    if not dies_s:
        two.server.be_busy(1e6)
    two.run(until_s=awaited_s)
    two.worker.connection.await_announcement(two.simulation.now_s)
    two.worker.work()
    two.run(until_s=max(dies_s, awaited_s + 0.9 * TIMEOUT_S))
    assert two.worker.connection.lost is None
    two.server.be_busy(1e6)
    two.run(until_s=max(dies_s + 3 * TIMEOUT_S, awaited_s + TIMEOUT_S))
    assert gone(two.worker) == f"silent for {TIMEOUT_S:g} s"


# Paths that take no full datagrams.


STEP_S = 0.004


class Path(Two):
    """Loses datagrams by their size: `takes(pieces, now_s)` is the chance that one arrives.

    To cut chunks and to join them is not the connection's: a chunk is lost like one datagram.
    """

    def __init__(self, takes, *, repair, seed=0):
        super().__init__(chunks=2000, repair=repair, rate_bps=5e6, delay_s=0.01)
        self.outgoing = self.worker.connection.outgoing
        self.outgoing.sizes, self.outgoing.likely = {2: 150, 3: 220, 6: 420}, (2, 3, 6)
        self._takes, self._draws = takes, np.random.default_rng(seed)
        self.link._loss = lambda: not self._arrives(self.outgoing.pieces)
        self.simulation.at(0.0, self._look)
        self.begin(0)

    def _arrives(self, pieces):
        return self._draws.random() < self._takes(pieces, self.simulation.now_s)

    def _look(self):
        now_s = self.simulation.now_s
        for number, pieces in self.outgoing.trials():
            if self._arrives(pieces):
                self.server.connection.incoming.on_trial(number, now_s)
        self.worker.work()
        self.server.work()
        self.simulation.at(now_s + STEP_S, self._look)


REPAIRS = pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])


@REPAIRS
@pytest.mark.parametrize(("fits", "loss"), [(2, 0.0), (3, 0.0), (6, 0.1), (2, 0.3)])
def test_where_full_datagrams_vanish_and_smaller_ones_do_not_chunks_are_cut(repair, fits, loss):
    path = Path(lambda pieces, now_s: (1 - loss) * (pieces >= fits or now_s < 0.1), repair=repair)
    path.run(4.0)
    assert path.outgoing.pieces == path.server.connection.incoming.pieces == fits
    assert path.path.datagram_wire_bytes == path.outgoing.sizes[fits]
    path.run(30.0)
    assert path.intact == [0] and ended(path.worker) == ended(path.server) == [0]


@REPAIRS
@pytest.mark.parametrize("loss", [0.9, 0.97])
@pytest.mark.parametrize("seed", range(2))
def test_a_path_that_loses_most_datagrams_of_any_size_has_no_hole(repair, loss, seed):
    path = Path(lambda pieces, now_s: 1 - loss, repair=repair, seed=seed)
    path.run(8.0)
    assert path.outgoing.pieces == 1 and not gone(path.worker)


@REPAIRS
def test_nor_has_one_that_loses_all_for_a_while_or_for_ever(repair):
    path = Path(lambda pieces, now_s: not 0.1 < now_s < 3.0, repair=repair)
    path.run(30.0)
    assert path.outgoing.pieces == 1 and path.intact == [0]
    path = Path(lambda pieces, now_s: now_s < 0.1, repair=repair)
    path.run(30.0)
    assert path.outgoing.pieces == 1 and "data does not arrive" in gone(path.worker)


def test_only_who_has_seen_a_trial_can_confirm_it_and_once():
    search = SizeSearch()
    numbers = [number for _ in range(3) for number, _ in search.trials([2])]
    for number in range(1000):
        search.arrived(number)
    for _ in range(20):
        search.arrived(numbers[0])
    assert search.proven is None
    for number in numbers[1:]:
        search.arrived(number)
    assert search.proven == 2


def test_a_flood_of_trials_is_answered_a_bounded_number_of_times():
    victim = Victim("passes", chunks=9, tolerance=0.1)
    incoming = victim.sides["receiver"].incoming
    for number in range(10_000):
        incoming.on_trial(number, 1.0)
    assert len(incoming.poll_messages()) <= 256


@pytest.mark.parametrize("pieces", [0, MOST_PIECES + 1, 2**32 - 1])
def test_chunks_in_pieces_that_cannot_be_break_the_protocol(pieces):
    victim = Victim("passes", chunks=9, tolerance=0.1)
    with pytest.raises(ProtocolError, match="pieces"):
        victim.sides["receiver"].incoming.cut(pieces)
    victim.control("receiver", ControlMessage(MessageType.PIECES, body=SENT.pack(pieces)).encode())
    assert victim.restarts == 1
