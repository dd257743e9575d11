"""What all congestion controls have in common: options, and what they measure."""

import math

import pytest

from testbed.transport.core.congestion import Feedback
from testbed.transport.policies.congestion.path import (
    DeliveryPlateau,
    MaxFilter,
    PathMonitor,
    Plateau,
)
from testbed.transport.protocols import NEED_RATE
from tests.transport.congestion_rounds import (
    ALL,
    SIZE,
    create,
)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("cubic:beta=1.5", "beta is 1.5; valid: above 0, up to 0.99"),
        ("reno:initial_window=0", "initial_window is 0; valid: above 0"),
        ("timely:beta=2", "beta is 2; valid: above 0, up to 1"),
        ("timely:t_low_s=2e-3,t_high_s=1e-3", "t_high_s is 0.001; valid: at least t_low_s"),
        ("timely:t_low_s=-1", "t_low_s is -1; valid: seconds, 0 or more"),
    ],
)
def test_wrong_options_say_what_would_be_valid(text, named):
    with pytest.raises(ValueError, match=r"valid|must be") as error:
        create(text)
    assert named in str(error.value)


def report(now_s, delivered_bytes=SIZE, **more):
    sizes = {"lost_bytes": 0, "in_flight_bytes": 0}
    return Feedback(now_s=now_s, delivered_bytes=delivered_bytes, **{**sizes, **more})


def test_the_delivery_rate_is_not_fooled_by_reports_that_come_together():
    path = PathMonitor()
    path.on_sent(0.0)
    for now_s, sent_s in ((0.010, 0.0), (0.0101, 0.005), (0.0102, 0.010), (0.0201, 0.0101)):
        path.on_feedback(report(now_s, 10_000, in_flight_bytes=10_000, rtt_s=now_s - sent_s))
        assert path.delivery_rate_bps is None or path.delivery_rate_bps <= 30_000 * 8 / 0.01 * 1.01


def test_rates_are_not_measured_across_a_pause():
    path = PathMonitor()
    for begin_s in (0.0, 100.0):
        path.on_transfer_begin(begin_s)
        path.on_sent(begin_s)
        path.on_feedback(report(begin_s + 0.01, 10_000, lost_bytes=5_000, rtt_s=0.01))
        assert path.delivery_rate_bps == pytest.approx(8e6)
        assert path.arrival_rate_bps == pytest.approx(12e6)


def test_rates_are_not_measured_across_an_answer_that_lay_unread():
    path = PathMonitor()
    path.on_sent(0.0)
    told = {"delivered_bytes": 10_000, "in_flight_bytes": 10_000}
    path.on_feedback(report(1.5, **told))  # when its datagrams were sent is not said
    assert path.delivery_rate_bps is None
    path.on_sent(1.5)
    path.on_feedback(report(1.501, rtt_s=1.501, **told))  # of what went before
    assert path.delivery_rate_bps is None
    path.on_feedback(report(1.51, rtt_s=0.01, **told))
    assert path.delivery_rate_bps == pytest.approx(20_000 * 8 / 0.01)


def test_round_trips_of_microseconds_are_kept_as_they_are():
    path = PathMonitor()
    for rtt_s in (52e-6, 48e-6, 61e-6, 0.0):
        path.on_feedback(report(1.0, 1, in_flight_bytes=1, rtt_s=rtt_s))
        assert path.min_rtt_s == pytest.approx(min(path.min_rtt_s, max(rtt_s, 1e-6)))
    assert path.min_rtt_s == 1e-6
    assert 40e-6 < (path.smoothed_rtt_s or 0) < 61e-6


@pytest.mark.parametrize("text", ALL)
def test_a_path_whose_round_trip_is_not_told_gets_a_finite_window(text):
    control = create(text)
    control.on_transfer_begin(0.0)
    for step in range(1, 20):
        control.on_sent(10 * SIZE, step * 0.01 - 0.005)
        control.on_feedback(report(step * 0.01, 10 * SIZE, newest_sent_s=step * 0.01 - 0.005))
    assert text in NEED_RATE or SIZE <= control.window_bytes < math.inf
    assert 0 < control.rate_bps < math.inf


def test_the_delay_of_a_receiver_that_was_busy_does_not_stay_in_the_round_trip():
    path = PathMonitor()

    def answer(at_s, *, waited_s=None, rtt_s=None):
        path.on_feedback(report(at_s, rtt_s=rtt_s, newest_sent_s=at_s - (waited_s or rtt_s)))
        return path.smoothed_rtt_s

    assert answer(1.0, waited_s=1.0) == 1.0
    assert answer(2.0, waited_s=2.0) == 1.0
    assert answer(3.0, waited_s=0.1) == pytest.approx(0.1)  # the path's is no longer
    assert answer(4.0, rtt_s=0.004) == path.base_rtt_s == 0.004
    assert not path.queued()
    assert answer(5.0, waited_s=1.0) == 0.004
    assert answer(6.0, rtt_s=0.002) == pytest.approx(0.004 + (0.002 - 0.004) / 8)


def test_the_max_filter_forgets_after_its_rounds():
    largest = MaxFilter(3)
    seen = []
    for round_, value in enumerate([5.0, 9.0, 1.0, 2.0, 3.0, 0.5]):
        largest.add(value, round_)
        seen.append(largest.value)
    assert seen == [5, 9, 9, 9, 3, 3]


@pytest.mark.parametrize(("loss", "futile"), [(0.0, False), (0.5, False), (None, True)])
def test_growth_is_futile_behind_a_full_queue_and_not_under_random_loss(loss, futile):
    check = DeliveryPlateau()
    verdicts = []
    rates = [100.0 * 1.1**n for n in range(12)]
    for before, rate in zip([rates[0], *rates], rates, strict=False):
        delivered = 100.0 if loss is None else before * (1 - loss)
        verdicts.append(check.plateau_bps(rate, delivered, Plateau(growth=1.25, gain=1.1)))
    assert any(verdict is not None for verdict in verdicts) == futile
