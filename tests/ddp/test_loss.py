"""Bounded loss: within its bound, the same for all replicas, and owed where that is asked."""

import numpy as np
import pytest
import torch

from testbed.ddp import BoundedLoss
from testbed.transport import preset
from tests.ddp.ranks import (
    Ledger,
    drawn,
    exchange,
    last,
    launch,
    lossy,
    model,
    owed_by,
    require_paid_or_owed,
    train,
    values,
    weights,
    wrapped,
)

SIZES = (70_000, 1, 30_000)  # one has fewer elements than there are ranks
PARAMETERS = [torch.zeros(size) for size in SIZES]
STEPS = 8


def lossy_training(rank, collective, device="cpu"):
    ddp = wrapped(model().to(device))
    state = lossy(rank, collective=collective)
    ddp.register_comm_hook(state, state.hook)
    reports = []
    train(ddp, STEPS, rank, device=device, after=lambda _: reports.append(last(state)))
    return weights(ddp), [[bucket.loss for bucket in report.buckets] for report in reports]


@pytest.mark.parametrize("collective", ["server", "sharded"])
def test_replicas_stay_identical_and_losses_within_their_bound(collective):
    assert_bounded(values(launch(lossy_training, 3, collective=collective)))


def assert_bounded(told):
    """The weights and losses of `lossy_training` on all ranks."""
    for ours, losses in told:
        assert np.array_equal(ours, told[0][0])
        assert all(loss == 0 for step in losses[:2] for loss in step)
        later = [loss for step in losses[2:] for loss in step]
        assert 0 < max(later) <= 0.4


def accounts(rank):
    """The ledger of a training; then what a new process's first step pays."""
    state, ledger = lossy(rank), Ledger(SIZES)
    missed = 0.0
    for step in range(STEPS):
        gradients = drawn(SIZES, rank, step)
        ledger.enter(gradients, exchange(state, gradients, PARAMETERS))
        missed += sum(bucket.loss for bucket in last(state).buckets)
    saved = state.state_dict()
    ledger.close(state)
    state.close()
    resumed = BoundedLoss("dblp", timeout_s=60)
    resumed.load_state_dict(saved)
    again = owed_by(resumed.state_dict())
    none = [torch.zeros(size) for size in SIZES]
    paid = [mean.numpy().copy() for mean in exchange(resumed, none, PARAMETERS)]
    return ledger, again, owed_by(resumed.state_dict()), paid, missed


def test_what_was_lost_is_owed_and_paid_after_a_checkpoint():
    outcomes = values(launch(accounts, 3))
    require_paid_or_owed([ledger for ledger, *_ in outcomes])
    for index, size in enumerate(SIZES):
        owed = sum(ledger.owed.get(index, np.zeros(size)).astype(float) for ledger, *_ in outcomes)
        np.testing.assert_allclose(3 * outcomes[0][3][index], owed, rtol=1e-5, atol=1e-5)
    for ledger, again, later, _, missed in outcomes:
        assert missed > 0
        assert ledger.owed
        assert ledger.owed.keys() == again.keys()
        assert all(np.array_equal(ledger.owed[slot], again[slot]) for slot in again)
        assert later == {}


def phases(rank):
    """The most that each step lost, in critical steps and others."""
    state = lossy(rank, preset("dblp", low=0.0, high=0.5), filling="zero")
    most = []
    for step in range(6):
        state.critical = step < 4
        exchange(state, drawn(SIZES, rank, step), PARAMETERS)
        most.append(max(bucket.loss for bucket in last(state).buckets))
    return most, state.state_dict()["residuals"]


def test_critical_phases_lose_less_and_a_filling_without_memory_owes_nothing():
    for most, owed in values(launch(phases, 2)):
        assert most[:4] == [0.0] * 4
        assert all(0 < each <= 0.5 for each in most[4:])
        assert owed == {}


def changing(rank):
    """Buckets that change in the middle of training; each step's mean must be right."""
    state = BoundedLoss("none", timeout_s=60)
    carried, right = [], []
    others = [torch.zeros(2000), *PARAMETERS[1:]]
    for step in range(9):
        parameters = PARAMETERS if step < 4 else others
        sizes = [parameter.numel() for parameter in parameters]
        means = exchange(state, drawn(sizes, rank, step), parameters)
        everyone = [drawn(sizes, index, step) for index in range(2)]
        right.append(
            all(
                torch.equal(mean, (one + two) / 2)
                for mean, one, two in zip(means, *everyone, strict=True)
            )
        )
        carried.append(last(state).carried_by)
    return carried, right


def test_buckets_that_change_are_complete_until_they_are_known_again():
    for carried, right in values(launch(changing, 2)):
        assert all(right)
        first = ["process group"] * 2 + ["transport"] * 2
        assert carried == first + ["process group"] * 2 + ["transport"] * 3


def test_the_mode_local_and_a_single_rank_send_nothing():
    for kept, report in values(launch(local, 2, mode="local")) + values(
        launch(local, 1, mode="bounded")
    ):
        assert kept
        assert report.carried_by == "nothing"
        assert (report.bytes_sent, report.bytes_received) == (0, 0)


def local(rank, mode):
    state = BoundedLoss(mode=mode)
    gradients = drawn(SIZES, rank)
    for _ in range(3):
        means = exchange(state, gradients, PARAMETERS)
    kept = all(torch.equal(one, two) for one, two in zip(means, gradients, strict=True))
    return kept, state.last
