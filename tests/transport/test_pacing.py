"""Pacing in virtual time."""

import math

import numpy as np
import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.party import link_up
from testbed.simulate.way import Way
from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.pacing import CATCH_UP_S, QUANTUM_S, Pacer
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.tolerance import FractionRule
from testbed.transport.core.wire import wire_bytes
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.repair import REPAIRS
from tests.transport.virtual import connections, random_payload

SIZE = 1514
LONG_QUEUE_BYTES = 10**6


def pacer_of(*, rate_bps=100e6, **settings):
    return Pacer(rate_bps=rate_bps, datagram_wire_bytes=SIZE, **settings)


def run(pacer, *, until_s, late_s=lambda: 0.0, start_s=0.0):
    """Sends whatever is allowed; wakes up `late_s()` after each deadline."""
    now_s, sends = start_s, []
    while now_s < until_s:
        sends.append((now_s, burst(pacer, now_s)))
        now_s = pacer.next_s(now_s) + late_s()
    return sends


def burst(pacer, now_s):
    total = 0
    while count := pacer.allowance(now_s):
        pacer.spend(count)
        total += count
    return total


def rate_of(sends):
    """Wire bits per second between the first batch and the last."""
    return sum(count for _, count in sends[1:]) * SIZE * 8 / (sends[-1][0] - sends[0][0])


@pytest.mark.parametrize("rate_bps", [1e5, 10e6, 100e6, 1e9])
@pytest.mark.parametrize("start_s", [0.0, 3e6])
def test_the_rate_comes_out_as_configured(rate_bps, start_s):
    pacer = pacer_of(rate_bps=rate_bps)
    length_s = max(1.0, 100 * SIZE * 8 / rate_bps)
    sends = run(pacer, start_s=start_s, until_s=start_s + length_s)
    assert rate_of(sends) == pytest.approx(rate_bps, rel=0.02)


@pytest.mark.parametrize("queue_bytes", [LONG_QUEUE_BYTES, math.inf])
def test_waking_up_late_costs_no_rate(queue_bytes):
    generator = np.random.default_rng(1)
    pacer = pacer_of(queue_bytes=queue_bytes)
    sends = run(pacer, until_s=1.0, late_s=lambda: generator.uniform(0, 0.9 * CATCH_UP_S))
    assert rate_of(sends) == pytest.approx(100e6, rel=0.01)


@pytest.mark.parametrize(
    ("rate_bps", "batch"), [(1e6, 1), (10e6, 3), (100e6, 33), (1e10, 44), (math.inf, 44)]
)
def test_a_batch_is_four_milliseconds_of_the_rate_within_limits(rate_bps, batch):
    pacer = pacer_of(rate_bps=rate_bps, queue_bytes=LONG_QUEUE_BYTES)
    assert pacer.allowance(0.0) == batch


def test_without_a_rate_a_batch_is_as_large_as_was_asked_for():
    pacer = pacer_of(rate_bps=math.inf, max_batch=5, unpaced_batch=40)
    assert pacer.allowance(0.0) == 40
    pacer.set_rate(1e10)
    assert pacer.allowance(0.0) == 5


@pytest.mark.parametrize(
    ("quantum_s", "queue_datagrams", "batch"),
    [
        (1e-3, 1000, 8),
        (4e-3, 32, 8),
        (4e-3, 4, 1),
        (4e-3, 2, 1),
        (4e-3, 1000, 33),
        (4e-3, math.inf, 8),
        (5e-4, math.inf, 4),
    ],
)
def test_a_batch_is_as_long_as_asked_for_and_a_quarter_of_the_queue_or_1_ms_at_most(
    quantum_s, queue_datagrams, batch
):
    pacer = pacer_of(quantum_s=quantum_s, queue_bytes=queue_datagrams * SIZE)
    assert pacer.allowance(0.0) == batch


def test_a_sender_that_wakes_up_late_sends_all_that_is_due_in_one_batch_if_the_queue_is_known():
    pacer = pacer_of(quantum_s=1e-3, queue_bytes=LONG_QUEUE_BYTES)
    burst(pacer, 0.0)
    assert pacer.allowance(3e-3) == int(3e-3 * 100e6 / 8 / SIZE)
    assert pacer.allowance(1.0) == 44  # more are not sent at once, whatever is due
    unknown = pacer_of()
    burst(unknown, 0.0)
    assert unknown.allowance(3e-3) == 8
    assert burst(unknown, 3e-3) == 3 * 8


def test_a_long_stall_ends_in_a_bounded_burst():
    pacer = pacer_of(queue_bytes=LONG_QUEUE_BYTES)
    run(pacer, until_s=0.1)
    most = (QUANTUM_S + CATCH_UP_S) * 100e6 / 8 / SIZE
    assert 33 < burst(pacer, 10.0) <= most
    short = pacer_of(queue_bytes=40 * SIZE)
    burst(short, 0.0)
    assert burst(short, 10.0) == 20  # half the queue


def test_having_had_nothing_to_send_is_no_reason_to_catch_up():
    pacer = pacer_of()
    run(pacer, until_s=0.1)
    pacer.resume(10.0)
    assert burst(pacer, 10.0) == 8


def test_a_rate_that_begins_after_unpaced_transfers_begins_with_one_batch():
    pacer = pacer_of(rate_bps=math.inf)
    pacer.resume(0.0)
    pacer.set_rate(100e6)
    assert pacer.allowance(0.0) == 8


def test_the_last_few_datagrams_do_not_wait_for_a_whole_batch():
    pacer = pacer_of()
    burst(pacer, 0.0)
    one_s = SIZE * 8 / 100e6
    assert pacer.allowance(1.01 * one_s) == 0
    assert pacer.allowance(1.01 * one_s, remaining=1) == 1
    assert pacer.next_s(1.01 * one_s, remaining=2) == pytest.approx(2 * one_s, rel=0.02)


@pytest.mark.parametrize("queue_bytes", [math.inf, 128_000 / 8])
def test_senders_that_know_no_queue_or_their_share_do_not_overflow_a_short_one(queue_bytes):
    simulation, senders = Simulation(), 8  # with quanta of 4 ms they send all more than twice
    bottleneck = Link(simulation, rate_bps=1e9, delay_s=1e-4, queue_bytes=128_000)
    layout = PayloadLayout([("weights", 300_000)])
    parties = []
    for seed in range(senders):
        access = Link(simulation, rate_bps=10e9, delay_s=1e-4)
        ways = Way([access, bottleneck]), Way([], control_delay_s=2e-4)
        path = SendingPath(
            congestion=FixedRate(rate_bps=0.95 * 1e9 / senders),
            chunk_bytes=layout.chunk_bytes,
            queue_bytes=queue_bytes,
        )
        repair = REPAIRS.create("streaming")
        sender, receiver = connections(simulation, ways, layout, repair=repair, path=path)
        rule = FractionRule(chunk_count=layout.chunk_count, tolerance=0.0)
        sender.connection.post_send(6, random_payload(layout, seed), 0.0)
        receiver.connection.post_receive(6, rule, layout.new_buffer(), 0.0)
        link_up(sender, receiver)
        parties.append(sender)
    simulation.run(done=lambda: all(party.events for party in parties), limit=2_000_000)
    assert bottleneck.sent < 1.02 * senders * layout.chunk_count


def test_what_the_socket_appends_to_each_datagram_counts_on_the_wire():
    control = FixedRate(rate_bps=1e6)
    plain = SendingPath(congestion=control, chunk_bytes=16)
    sealed = SendingPath(congestion=control, chunk_bytes=16, trailer_bytes=8)
    assert plain.datagram_wire_bytes == wire_bytes(1, 16)
    assert sealed.datagram_wire_bytes == wire_bytes(1, 16) + 8
