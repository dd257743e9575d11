"""The loss model's formulas against the channel played through packet by packet."""

import itertools
import random
import statistics

import pytest

from testbed.lab.loss_model import LossModel

PACKETS = 200_000


def lost(model: LossModel) -> list[bool]:
    """Which packets of many the channel loses."""
    draw, bad, found = random.Random(7), False, []
    for _ in range(PACKETS):
        found.append(draw.random() < (model.loss_bad if bad else model.loss_good))
        if draw.random() < (model.p_bad_to_good if bad else model.p_good_to_bad):
            bad = not bad
    return found


@pytest.mark.parametrize(
    "model",
    [
        LossModel(loss_good=0.4),
        LossModel(p_good_to_bad=0.02, p_bad_to_good=0.2),
        LossModel(p_good_to_bad=0.02, p_bad_to_good=0.2, loss_bad=0.9),
        LossModel(p_good_to_bad=0.05, p_bad_to_good=0.1, loss_good=0.01, loss_bad=0.5),
    ],
)
def test_mean_loss_and_mean_run_of_losses(model):
    found = lost(model)
    runs = [len(list(group)) for is_lost, group in itertools.groupby(found) if is_lost]
    assert statistics.mean(found) == pytest.approx(model.mean_loss, rel=0.05)
    assert statistics.mean(runs) == pytest.approx(model.mean_burst_packets, rel=0.05)


def test_the_classical_cases():
    gilbert = LossModel(p_good_to_bad=0.02, p_bad_to_good=0.2)
    assert gilbert.mean_loss == pytest.approx(0.02 / 0.22)
    assert gilbert.mean_burst_packets == pytest.approx(1 / 0.2)
    assert LossModel(loss_good=0.4).mean_burst_packets == pytest.approx(1 / 0.6)
