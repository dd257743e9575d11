"""Gradients that are not finite, and scaled ones: what is owed stays finite and in their scale."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from testbed.ddp import BoundedLoss, InputError
from tests.ddp.ranks import (
    Ledger,
    batch,
    drawn,
    exchange,
    last,
    launch,
    lossy,
    model,
    require_paid_or_owed,
    values,
    weights,
    wrapped,
)
from tests.ddp.test_loss import PARAMETERS, SIZES

STEPS, OVERFLOW = 14, 7


def scaled(rank, hook):
    """Trains with a GradScaler; rank 1's gradient overflows once. Its scale after each step."""
    net = model()
    ddp = wrapped(net)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    if hook:
        state = lossy(rank, scaler=scaler)
        ddp.register_comm_hook(state, state.hook)
    factors = [1.0]
    net[2].weight.register_hook(lambda gradient: gradient * factors[0])
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05)
    scales = []
    for step in range(STEPS):
        inputs, targets = batch(step, rank)
        factors[0] = math.inf if (step, rank) == (OVERFLOW, 1) else 1.0
        optimiser.zero_grad()
        scaler.scale(nn.functional.mse_loss(ddp(inputs), targets)).backward()
        scaler.step(optimiser)
        scaler.update()
        scales.append(scaler.get_scale())
    if hook:
        assert max(bucket.loss for bucket in last(state).buckets) > 0
    return scales, weights(ddp)


def plain_and_ours(rank):
    return scaled(rank, hook=False), scaled(rank, hook=True)


def test_one_overflow_skips_one_step_as_over_plain_ddp():
    told = values(launch(plain_and_ours, 3))
    for (plain, _), (scales, ours) in told:
        assert scales == plain
        assert np.array_equal(ours, told[0][1][1])
        assert np.isfinite(ours).all()


SCALES = (*5 * [2.0**16], *3 * [2.0**15], *4 * [2.0**17])


def accounts(rank, filling, collective):
    """The ledger, unscaled, and what each step was like."""
    state, ledger = lossy(rank, filling=filling, collective=collective), Ledger(SIZES)
    finite, kept, bounded = [], [], []
    for step, scale in enumerate(SCALES):
        gradients = [scale * each for each in drawn(SIZES, rank, step)]
        wrong = {1: math.nan, 4: math.inf, 9: -math.inf}.get(step)
        if wrong is not None and rank == step % 3:
            gradients[0][rank * 20_000] = wrong
        before = state.state_dict()["residuals"]
        state.scale = scale
        means = exchange(state, gradients, PARAMETERS)
        after = state.state_dict()["residuals"]
        finite.append(all(bool(mean.isfinite().all()) for mean in means))
        bounded.append(all(bool(each.isfinite().all()) for each in after.values()))
        pairs = zip(before.values(), after.values(), strict=False)
        kept.append(before.keys() == after.keys() and all(torch.equal(*pair) for pair in pairs))
        if finite[-1]:
            ledger.enter(gradients, means, scale)
    return ledger.close(state), finite, kept, bounded


@pytest.mark.parametrize(
    ("filling", "collective"),
    [
        *(("error-feedback", collective) for collective in ("sharded", "server")),
        ("rescale", "sharded"),
    ],
)
def test_what_is_not_finite_reaches_all_ranks_once_and_debts_stay(filling, collective):
    outcomes = values(launch(accounts, 3, filling=filling, collective=collective))
    for _, finite, kept, bounded in outcomes:
        assert [step for step, each in enumerate(finite) if not each] == [1, 4, 9]
        assert all(bounded)
        assert all(kept[step] for step in (1, 4, 9))
    if filling == "error-feedback":
        require_paid_or_owed([ledger for ledger, *_ in outcomes])
        assert any(ledger.owed for ledger, *_ in outcomes)


def wrong_scales(_):
    for scale in (0.0, math.nan):
        state = BoundedLoss(timeout_s=60)
        state.scale = scale
        with pytest.raises(InputError, match=f"^scale is {scale}; valid: above 0 and finite$"):
            exchange(state, drawn(SIZES, 0), PARAMETERS)


def test_a_scale_that_cannot_be_is_refused():
    values(launch(wrong_scales, 1))
