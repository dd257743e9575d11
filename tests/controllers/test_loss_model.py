"""The loss model's formulas against the tables drawn with it, and the tables themselves."""

import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.lab import loss_table
from testbed.lab.loss_table import LossModel

PACKETS = 131_072


def lost(model: LossModel, seed: str = "7") -> list[bool]:
    return np.isin(np.arange(PACKETS), loss_table.drawn(model, seed).losses(0, PACKETS)).tolist()


@pytest.mark.parametrize(
    ("model", "mean_loss", "mean_run"),
    [
        (LossModel(loss_good=0.4), 0.4, 1 / 0.6),
        (LossModel(p_good_to_bad=0.02, p_bad_to_good=0.2), 0.02 / 0.22, 1 / 0.2),
        # The next is lost, too, where the state stays bad and the bad state loses it.
        (
            LossModel(p_good_to_bad=0.02, p_bad_to_good=0.2, loss_bad=0.9),
            0.9 * 0.02 / 0.22,
            1 / (1 - 0.8 * 0.9),
        ),
    ],
)
def test_mean_loss_and_mean_run_of_losses(model, mean_loss, mean_run):
    losses = lost(model)
    runs = [len(list(group)) for is_lost, group in itertools.groupby(losses) if is_lost]
    assert model.mean_loss == pytest.approx(mean_loss)
    assert statistics.mean(losses) == pytest.approx(mean_loss, rel=0.05)
    assert statistics.mean(runs) == pytest.approx(mean_run, rel=0.05)


MODELS = st.builds(
    LossModel,
    loss_good=st.floats(0, 1),
    loss_bad=st.floats(0, 1),
    p_good_to_bad=st.floats(0.001, 1),
    p_bad_to_good=st.floats(0.001, 1),
)


@settings(max_examples=8, deadline=None)
@given(MODELS, st.text(max_size=8), st.integers(0, 2000), st.integers(0, 500_000))
def test_the_same_seed_loses_the_same_packets_and_the_filters_agree(
    model, seed, occurrence, packets
):
    one, same = loss_table.drawn(model, seed), loss_table.drawn(model, seed)
    assert (one.size, one.lost.tolist()) == (same.size, same.lost.tolist())
    losses = one.losses(occurrence, packets)
    # As nftables looks a packet up, and as the XDP program does.
    first, period = one.span(occurrence)
    indices = np.arange(packets)
    assert 0 < period <= loss_table.MOST_PACKETS
    assert np.flatnonzero(np.isin(indices % period + first, one.lost)).tolist() == losses.tolist()
    table, length = one.bits(occurrence)
    bits = np.unpackbits(np.frombuffer(table, np.uint8), bitorder="little")[:length]
    assert np.flatnonzero(bits[indices % length]).tolist() == losses.tolist()


def test_another_seed_and_another_occurrence_lose_others():
    model = LossModel(loss_good=0.1)
    table, other = (loss_table.drawn(model, seed) for seed in ("1/loss", "2/loss"))
    some = [table.losses(number, 1000).tolist() for number in range(200)]
    assert len({tuple(losses) for losses in some}) == 200
    assert other.losses(0, 1000).tolist() != some[0]
    # They do not meet the same stretch of the table either.
    begins = sorted(table.span(number)[0] for number in range(200))
    assert min(b - a for a, b in itertools.pairwise(begins)) > table.size / 2 / 200 / 3
