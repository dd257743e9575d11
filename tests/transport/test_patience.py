"""When one side gives up the other, and why; in virtual time."""

import pytest

from testbed.transport.core.events import Announced, TransferDone
from testbed.transport.core.wire import wire_bytes
from tests.transport.two_parties import TIMEOUT_S, Two, gone
from tests.transport.virtual import random_payload


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
    two.carry(0)
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


def test_of_transfers_that_stand_still_alike_the_first_is_named():
    two = Two()
    for number in (0, 2):
        two.receive(number)
    two.run()
    assert gone(two.server).endswith(f"no new chunk of transfer 0 for {TIMEOUT_S:g} s")


def test_patience_runs_from_the_last_new_chunk():
    two = Two(chunks=100, rate_bps=100 * 8 * 74 / (3 * TIMEOUT_S))
    two.carry(0)
    assert two.intact == [0]
    assert two.simulation.now_s > 2 * TIMEOUT_S


def slow():
    """Each transfer takes less than the patience, several take more."""
    chunks = 1500
    return Two(chunks=chunks, rate_bps=chunks * 8 * wire_bytes(1, 16) / (0.6 * TIMEOUT_S))


def test_a_transfer_is_awaited_while_those_before_it_arrive():
    two = slow()
    for number in range(4):
        two.receive(number)
    for number in range(4):
        two.send(number)
    two.run()
    assert two.intact == [0, 1, 2, 3]
    assert two.simulation.now_s > 2 * TIMEOUT_S


def test_a_transfer_that_never_comes_is_given_up_although_another_was_before_it():
    two = slow()
    for number in (0, 1):
        two.receive(number)
    two.send(0)
    two.run()
    assert two.intact == [0]
    assert gone(two.server).endswith(f"no new chunk of transfer 1 for {TIMEOUT_S:g} s")
    assert TIMEOUT_S < two.simulation.now_s < 2 * TIMEOUT_S


def test_a_transfer_that_never_comes_is_given_up_while_those_behind_it_arrive():
    two = slow()
    for number in (0, 1, 2):
        two.receive(number)
    for number in (1, 2):
        two.send(number)
    two.run()
    assert "it sends nothing: no new chunk of transfer 0" in gone(two.server)
    assert two.intact == [1]


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


def test_a_server_that_dies_before_its_announcement_is_given_up():
    two = Two()
    two.run(until_s=3 * TIMEOUT_S)
    two.worker.connection.await_announcement(two.simulation.now_s)
    two.worker.work()
    two.run(until_s=6 * TIMEOUT_S)
    two.server.be_busy(1e6)
    two.run(until_s=9 * TIMEOUT_S)
    assert gone(two.worker) == f"silent for {TIMEOUT_S:g} s"


def test_patience_with_a_server_runs_from_when_its_announcement_was_awaited():
    two = Two()
    two.server.be_busy(1e6)
    two.run(until_s=3 * TIMEOUT_S)
    two.worker.connection.await_announcement(two.simulation.now_s)
    two.worker.work()
    two.run(until_s=3.9 * TIMEOUT_S)
    assert two.worker.connection.lost is None
    two.run(until_s=4 * TIMEOUT_S)
    assert gone(two.worker) == f"silent for {TIMEOUT_S:g} s"
