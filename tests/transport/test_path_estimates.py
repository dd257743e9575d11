"""What a repair makes of its samples of a path: exact values."""

import pytest

from testbed.transport.core.path_estimates import FALLEN, PathEstimates


def test_loss_is_the_lost_share_and_nothing_is_known_at_first():
    estimates = PathEstimates()
    assert estimates.loss == 0.0
    estimates.on_fates()
    assert estimates.loss == 0.0
    estimates.on_fates(arrived=3, lost=1)
    assert estimates.loss == 1 / 4


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
