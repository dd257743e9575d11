"""One side gives up the other when nothing comes."""

import math

import pytest

from testbed.transport.events import Announced
from testbed.transport.wire import wire_bytes
from tests.transport.virtual import TIMEOUT_S, Two, gone, random_payload, reports


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
    two.worker.fate = lambda frame: None
    two.carry(0)
    assert two.simulation.now_s < 2 * TIMEOUT_S
    for peer in (two.worker, two.server):
        assert "control works, data does not arrive" in gone(peer)
    sent = sum(count for at_s, count in two.worker.batches if at_s > 2.0)
    at_full_rate = (TIMEOUT_S - 2.0) * 10e6 / 8 / two.path.datagram_wire_bytes
    assert 0 < sent < at_full_rate / 50


def test_a_path_that_is_blocked_for_a_while_delays_a_transfer_by_little_more():
    two = Two(chunks=1000)
    two.worker.fate = lambda frame: None
    two.begin(0)
    two.run(until_s=3.0)
    two.worker.fate = None
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
    two.server.connection.post_send(1, random_payload(two.layout), 0.0)
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
