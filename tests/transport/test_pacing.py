"""Pacing, and what the transfers to one peer share."""

import math

import numpy as np
import pytest

from testbed.shared.input_error import InputError
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.transport.congestion import FixedRate
from testbed.transport.layout import PayloadLayout
from testbed.transport.messages import ControlMessage, MessageType
from testbed.transport.pacing import CATCH_UP_S, QUANTUM_S, Pacer
from testbed.transport.path_estimates import FALLEN, PathEstimates
from testbed.transport.repair import Passes
from testbed.transport.repair.passes import PassesSender
from testbed.transport.sending_path import SendingPath
from testbed.transport.wire import wire_bytes
from tests.transport.virtual import Recorder, Two, bitmap, layout_of, new_sender

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
    ("rate_bps", "batch"), [(1e6, 1), (10e6, 3), (100e6, 33), (1e10, 44), (math.inf, 8 * 44)]
)
def test_a_batch_is_four_milliseconds_of_the_rate_within_limits(rate_bps, batch):
    pacer = pacer_of(rate_bps=rate_bps, queue_bytes=LONG_QUEUE_BYTES)
    assert pacer.allowance(0.0) == batch


@pytest.mark.parametrize(
    ("rate_bps", "round_trip_s", "queue_bytes", "batch"),
    [
        (1e9, math.inf, math.inf, 44),
        (1e9, 1e-3, math.inf, 44),
        (1e9, 3e-3, math.inf, 61),
        (1e9, 1.0, math.inf, 82),
        (1e9, 1.0, 200 * SIZE, 50),
        (1e10, 1.0, math.inf, 8 * 44),
        (4e8, 1.0, math.inf, 33),
    ],
)
def test_a_fast_link_s_batch_is_a_millisecond_or_a_quarter_of_the_round_trip(
    rate_bps, round_trip_s, queue_bytes, batch
):
    pacer = pacer_of(queue_bytes=queue_bytes)
    pacer.fit(10**6)
    pacer.set_rate(rate_bps, round_trip_s)
    assert pacer.allowance(0.0) == batch
    pacer.spend(batch)
    assert pacer.allowance(1.0) == max(batch, 44 if queue_bytes < math.inf else 0)


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
    parties = [
        Two(
            simulation=simulation,
            links=[Link(simulation, rate_bps=10e9, delay_s=1e-4), bottleneck],
            delay_s=2e-4,
            layout=layout,
            repair="streaming",
            congestion=FixedRate(rate_bps=0.95 * 1e9 / senders),
            queue_bytes=queue_bytes,
        )
        for _ in range(senders)
    ]
    for number, two in enumerate(parties):
        two.begin(number)
    simulation.run(done=lambda: all(two.worker.events for two in parties), limit=2_000_000)
    assert bottleneck.sent < 1.02 * senders * layout.chunk_count


def test_what_the_socket_appends_to_each_datagram_counts_on_the_wire():
    control = FixedRate(rate_bps=1e6)
    plain = SendingPath(congestion=control, chunk_bytes=16)
    sealed = SendingPath(congestion=control, chunk_bytes=16, trailer_bytes=8)
    assert plain.datagram_wire_bytes == wire_bytes(1, 16)
    assert sealed.datagram_wire_bytes == wire_bytes(1, 16) + 8


# What a repair makes of its samples of a path.


@pytest.mark.parametrize(
    ("arrived", "lost", "loss"),
    [
        (16, 48, 48 / (16 / 4 + 48)),  # 16 more are within the memory of 64; 48 leave a quarter
        (32, 32, 32 / (32 / 2 + 32)),
        (64, 64, 1.0),
        (1000, 16, 16 / (64 * 3 / 4 + 16)),  # of many at once, 64 are remembered
    ],
)
def test_loss_remembers_the_latest_64_datagrams(arrived, lost, loss):
    estimates = PathEstimates()
    estimates.on_fates(arrived=arrived)
    estimates.on_fates(lost=lost)
    assert estimates.loss == loss


@pytest.mark.parametrize(("overtaken", "loss"), [(1, 1 / 4), (2, 0.0), (5, 0.0)])
def test_what_arrives_after_all_was_not_lost(overtaken, loss):
    estimates = PathEstimates()
    estimates.on_fates(arrived=3, lost=2)
    estimates.on_overtaken(overtaken, 4)
    assert estimates.loss == loss


def test_reordering_is_tolerated_as_far_as_it_was_seen_and_forgotten_by_halves():
    estimates = PathEstimates()
    for extent, tolerated in ((2, 3), (22, 23), (7, 23), (1000, 300)):
        estimates.on_overtaken(1, extent)
        assert estimates.reordering == tolerated
    assert estimates.patience == 5
    seen = []
    for _ in range(4):  # the transfer that saw it is over at the first
        estimates.on_transfer_begin()
        seen.append((estimates.reordering, estimates.patience))
    assert seen == [(300, 5), (151, 2), (77, 1), (40, 1)]


def test_round_trips_are_smoothed_as_in_rfc_6298():
    estimates = PathEstimates()
    assert (estimates.smoothed_s, estimates.overtaking_s()) == (None, 0.0)
    estimates.on_round_trip(0.25)
    assert (estimates.smoothed_s, estimates.deviation_s) == (0.25, 0.125)
    estimates.on_round_trip(0.5)
    assert estimates.smoothed_s == 0.25 + 0.25 / 8
    assert estimates.deviation_s == 0.125 + (0.25 - 0.125) / 4
    assert (estimates.latest_s, estimates.min_s) == (0.5, 0.25)
    assert estimates.overtaking_s() == 0.25 / 4


def test_a_sample_far_below_all_others_begins_the_estimate_anew():
    estimates = PathEstimates()
    estimates.on_round_trip(1.0)
    estimates.on_round_trip(FALLEN)
    assert estimates.smoothed_s == 1.0 - (1.0 - FALLEN) / 8
    estimates.on_round_trip(FALLEN**2 / 2)
    assert (estimates.smoothed_s, estimates.deviation_s) == (FALLEN**2 / 2, FALLEN**2 / 4)


def test_a_long_queue_shows_in_the_latest_round_trip_and_in_the_smoothed_one():
    estimates = PathEstimates()
    assert not estimates.queueing
    seen = []
    for sample_s in (0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.152, 0.153):
        estimates.on_round_trip(sample_s)
        seen.append(estimates.queueing)
    # 1.5 times the smallest and 2 ms are 152 ms. The smoothed one passes that with the sixth.
    assert seen == [False] * 6 + [True, False, True]


# What the control says, and what others have to send.


@pytest.mark.parametrize("rate_bps", [0, 0.0, -1, math.nan, "fast", None])
def test_a_rate_at_which_nothing_would_be_sent_is_refused(rate_bps):
    with pytest.raises(InputError, match=r"Recorder\.rate_bps is .* expected bit/s above 0"):
        SendingPath(congestion=Recorder(rate_bps=rate_bps), chunk_bytes=16)
    path = SendingPath(congestion=Recorder(), chunk_bytes=16)
    path.congestion = Recorder(rate_bps=rate_bps)  # as one that has fallen so low on its way
    with pytest.raises(InputError, match=r"Recorder\.rate_bps is .* expected bit/s above 0"):
        path.rate_bps  # noqa: B018 - reading it checks it


@pytest.mark.parametrize(
    ("others", "limited"), [("none", True), ("one", False), ("one held", False), ("ended", True)]
)
def test_the_end_of_a_pass_limits_what_is_sent_unless_another_transfer_is_under_way(
    others, limited
):
    control = Recorder(rate_bps=math.inf)
    path = SendingPath(congestion=control, chunk_bytes=16)
    sender = new_sender(layout_of(3), path=path)
    if others != "none":
        other = new_sender(layout_of(3), number=8, path=path)
        if others != "one":
            kind = MessageType.HOLD if others == "one held" else MessageType.STOP
            other.on_message(ControlMessage(kind, 8), 0.0)
    sender.sent(len(sender.offer(0.0)), 0.0)
    sender.on_message(bitmap(1), 0.25)
    assert [feedback.app_limited for feedback in control.heard] == [limited]


@pytest.mark.parametrize(("chunks", "batch"), [(20, 8), (200, 10), (2000, 33)])
def test_a_sender_fits_its_batches_to_its_transfer(chunks, batch):
    path = SendingPath(congestion=FixedRate(rate_bps=100e6), chunk_bytes=1456, queue_bytes=1e6)
    sender = new_sender(layout_of(chunks, chunk_bytes=1456), path=path)
    assert len(sender.offer(0.0)) == batch


def windowed(datagrams):
    control = Recorder(rate_bps=math.inf, window_bytes=datagrams * wire_bytes(1, 16))
    return SendingPath(congestion=control, chunk_bytes=16)


@pytest.mark.parametrize(("window", "unasked"), [(64, 16), (12, 8), (2, 1)])
def test_a_sender_asks_once_more_than_a_quarter_of_a_long_window_is_in_flight(window, unasked):
    path = windowed(window)
    sender = new_sender(layout_of(100), path=path)
    for count, asked in ((unasked, False), (1, True)):
        sender.offer(0.0)
        sender.sent(count, 0.0)
        sender.offer(0.0)
        assert bool(sender.poll_messages()) is asked


@pytest.mark.parametrize("held", [False, True])
def test_a_window_is_full_of_what_is_in_flight_also_of_a_transfer_that_is_held(held):
    path = windowed(20)
    sender = new_sender(layout_of(100), path=path)
    sender.offer(0.0)
    sender.sent(5, 0.0)
    if held:
        sender.on_message(ControlMessage(MessageType.HOLD, 6), 0.0)
    assert len(sender.offer(0.0)) == 15


class GivesUp(Passes):
    """Sends all again from 2 s on, answered or not."""

    def sender(self, *, estimates, **common):
        class Half(PassesSender):
            def deadline_s(self):
                return 2.0

            def on_deadline(self, now_s):
                self.asking = False
                self._cursor = 0

        return Half(**common)


@pytest.mark.parametrize("by", ["answer", "deadline"])
@pytest.mark.parametrize("shared", [False, True])
def test_after_waiting_a_sender_goes_on_with_one_batch(shared, by):
    """Unless another transfer was sending meanwhile: then the path has not been idle."""
    path = SendingPath(congestion=FixedRate(rate_bps=10e6), chunk_bytes=16, queue_bytes=1e6)
    sender = new_sender(layout_of(200), path=path, repair=GivesUp())
    if shared:
        new_sender(layout_of(200), number=8, path=path)
    now_s = 0.0
    while sender.asked_s is None:
        sender.sent(len(sender.offer(now_s)), now_s)
        now_s += 1e-3
    if by == "answer":
        sender.on_message(bitmap(1), 2.0)
    else:
        sender.on_deadline(2.0)
    at_once = 0
    while len(frames := sender.offer(2.0)):
        sender.sent(len(frames), 2.0)
        at_once += len(frames)
    assert at_once >= path.pacer.quantum
    assert (at_once > path.pacer.quantum) is shared
