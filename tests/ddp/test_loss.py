"""Bounded loss: what a step leaves out is added later; scales, phases, averages and buckets."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from testbed.ddp import BoundedLoss, InputError
from testbed.ddp.steps import Residuals
from testbed.training.detector import GradientNorm
from testbed.transport import preset
from tests.benchmarks.ddp_step import memory_ratios
from tests.ddp.ranks import (
    Ledger,
    assert_complete,
    batch,
    drawn,
    exchange,
    fake_bucket,
    last,
    launch,
    lossy,
    model,
    residuals_in,
    values,
    weights,
    wrapped,
)

SIZES = (70_000, 1, 30_000)  # one has fewer elements than there are ranks
PARAMETERS = [torch.zeros(size) for size in SIZES]


# Residuals.

SCALES = (*5 * [2.0**16], *3 * [2.0**15], *4 * [2.0**17])


def accounts(rank, filling, collective, **changes):
    """The ledger, unscaled, and what each step was like; then what a new process's step adds."""
    protocol = preset("fixed-high", tolerance=0.4, **changes)
    state = lossy(rank, protocol, filling=filling, collective=collective)
    ledger = Ledger(SIZES)
    finite, kept, bounded = [], [], []
    for step, scale in enumerate(SCALES):
        gradients = [scale * gradient for gradient in drawn(SIZES, rank, step)]
        wrong = {1: math.nan, 4: math.inf, 9: -math.inf}.get(step)
        if wrong is not None and rank == step % 3:
            gradients[0][rank * 20_000] = wrong
        before = residuals_in(state)
        state.scale = scale
        means = exchange(state, gradients, PARAMETERS)
        after = residuals_in(state)
        finite.append(all(bool(mean.isfinite().all()) for mean in means))
        bounded.append(all(np.isfinite(residual).all() for residual in after.values()))
        pairs = zip(before.values(), after.values(), strict=False)
        kept.append(before.keys() == after.keys() and all(np.array_equal(*pair) for pair in pairs))
        if finite[-1]:
            ledger.enter(gradients, means, scale)
    saved = state.state_dict()
    ledger.close(state)
    state.close()
    resumed = BoundedLoss("dblp", timeout_s=60)
    resumed.load_state_dict(saved)
    assert all(np.array_equal(residuals_in(resumed)[slot], at) for slot, at in ledger.left.items())
    none = [torch.zeros(size) for size in SIZES]
    added = [mean.numpy().copy() for mean in exchange(resumed, none, PARAMETERS)]
    assert residuals_in(resumed) == {}
    return ledger, finite, kept, bounded, added


@pytest.mark.parametrize(
    ("filling", "collective", "changes"),
    [
        ("error-feedback", "sharded", {}),
        ("error-feedback", "server", {}),
        ("error-feedback", "sharded", {"keep": 0.5}),
        ("error-feedback", "server", {"keep": 0.3, "order": "shuffled"}),
        ("error-feedback", "sharded", {"keep": 0.5, "codec": "int4"}),
        ("error-feedback", "server", {"codec": "bfloat16"}),
        ("rescale", "sharded", {}),
    ],
)
def test_lost_parts_are_added_later_and_what_is_not_finite_skips_one_step(
    filling, collective, changes
):
    """All ranks see a NaN or an infinity in the same step, which changes no residual."""
    outcomes = values(launch(accounts, 3, filling=filling, collective=collective, **changes))
    for _, finite, kept, bounded, _ in outcomes:
        assert [step for step, is_finite in enumerate(finite) if not is_finite] == [1, 4, 9]
        assert all(bounded)
        assert all(kept[step] for step in (1, 4, 9))
    ledgers = [ledger for ledger, *_ in outcomes]
    assert any(ledger.left for ledger in ledgers) == (filling == "error-feedback")
    if filling == "error-feedback":
        assert_complete(ledgers)
    for index, size in enumerate(SIZES):
        left = sum(ledger.left.get(index, np.zeros(size)).astype(float) for ledger in ledgers)
        np.testing.assert_allclose(3 * outcomes[0][4][index], left, rtol=1e-5, atol=1e-5)


# A way back that loses, too.


def missed(rank, collective):
    """A rank misses a share of some means; returns the shares, and a resynchronised net."""
    protocol = preset("fixed-high", tolerance=0)
    options = {"filling": "rescale", "broadcast_tolerance": 0.4, "collective": collective}
    state = lossy(rank, protocol, **options)
    shares = []
    for step in range(5):
        everyone = [drawn(SIZES, sender, step) for sender in range(3)]
        if step == 4:
            everyone[1][0][123] = math.nan
        means = exchange(state, everyone[rank], PARAMETERS)
        if step < 2:  # the process group averages
            continue
        if step == 4:
            assert all(bool(mean.isnan().any()) for mean in means[:1])
            continue
        for mean, *gradients in zip(means, *everyone, strict=True):
            arrived = (mean - torch.stack(gradients).mean(0)).abs() < 1e-6
            assert torch.equal(mean[~arrived], gradients[rank][~arrived])
            shares.append(float((~arrived).float().mean()))
    net = nn.BatchNorm1d(4)
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor += rank
    state.resynchronise(net)
    return shares, {name: tensor.numpy() for name, tensor in net.state_dict().items()}


@pytest.mark.parametrize("collective", ["sharded", "server"])
def test_a_rank_keeps_its_own_gradient_where_a_bounded_share_of_the_mean_is_lost(collective):
    outcomes = values(launch(missed, 3, collective=collective))
    for rank, (shares, tensors) in enumerate(outcomes):
        assert max(shares) <= 0.4
        assert (max(shares) > 0.1) == (rank > 0 or collective == "sharded")  # an owner has all
        assert all(np.array_equal(tensors[name], first) for name, first in outcomes[0][1].items())


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
    for step in range(14):
        inputs, targets = batch(step, rank)
        factors[0] = math.inf if (step, rank) == (7, 1) else 1.0
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
    outcomes = values(launch(plain_and_ours, 3))
    for (plain, _), (scales, ours) in outcomes:
        assert scales == plain
        assert np.array_equal(ours, outcomes[0][1][1])
        assert np.isfinite(ours).all()


SLOTS = (0, 1)


def residuals_of(*lost, scale=1.0):
    residuals = Residuals()
    assert residuals.slots({"first": 2, "second": 3}) == SLOTS
    residuals.replace(np.array(lost, dtype=np.float32), SLOTS, scale)
    return residuals


def added_by(residuals, scale=1.0):
    gradient = np.zeros(5, dtype=np.float32)
    residuals.add_to(gradient, SLOTS, scale)
    return list(gradient)


def test_a_residual_stays_until_a_step_has_delivered_it():
    residuals = residuals_of(0, 0, 3, 4, 0)
    assert (residuals.holds([0]), residuals.holds([1])) == (False, True)
    assert added_by(residuals) == added_by(residuals) == [0, 0, 3, 4, 0]
    residuals.replace(np.array([1, 0, 0, 0, 0], dtype=np.float32), SLOTS, 1.0)
    assert added_by(residuals) == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3e38])
def test_of_what_is_not_finite_nothing_more_is_kept(wrong):
    residuals = residuals_of(0, 0, 3, 4, 0)
    residuals.replace(np.array([wrong, 0, wrong, 5, 0], dtype=np.float32), SLOTS, 1.0)
    assert added_by(residuals) == [0, 0, 3, 5, 0]


def test_a_residual_follows_the_scale_and_stays_finite():
    residuals = residuals_of(0, 0, 3e30, -4, 0)
    assert added_by(residuals, 2.0**-3) == [0, 0, np.float32(3e30) / 8, -0.5, 0]
    assert added_by(residuals, 2.0**3) == [0, 0, np.float32(3e30) * 8, -32, 0]
    for large in (
        added_by(residuals, 1e300),
        added_by(residuals_of(1, 2, 3e30, 4, 5, scale=1e-300)),
    ):
        assert np.isfinite(1000 * np.array(large, dtype=np.float32)).all()


def wrong_scales(_):
    for scale in (0.0, math.nan):
        state = BoundedLoss(timeout_s=60)
        state.scale = scale
        with pytest.raises(InputError, match=f"^scale is {scale}; valid: above 0 and finite$"):
            exchange(state, drawn(SIZES, 0), PARAMETERS)


def test_a_scale_that_cannot_be_is_refused():
    values(launch(wrong_scales, 1))


# Averages of one tensor.


def averages(rank):
    right = []
    for dtype in (torch.float32, torch.bfloat16):
        state = BoundedLoss(mode="reliable", rate_bps=math.inf, timeout_s=60)
        for step in range(4):
            one, two = (
                drawn([7000], other, step)[0].reshape(100, 70).to(dtype) for other in (0, 1)
            )
            tensor = nn.Parameter((one, two)[rank].clone())
            state.average(tensor)
            right.append(torch.equal(tensor.detach(), ((one.float() + two.float()) / 2).to(dtype)))
        right.append(last(state).carried_by == "transport")
        state.close()
    other = BoundedLoss(mode="local")
    other.average(tensor)
    with pytest.raises(InputError, match="hook: this BoundedLoss is in use by average; valid: "):
        other.hook(other, fake_bucket(tensor, [tensor], last=True))
    return right


def test_means_of_a_tensor_are_those_in_rank_order():
    assert values(launch(averages, 2)) == 2 * [[True] * 10]


def averaged(rank, device="cpu"):
    """The ledger of averages with loss, and what a new exchange adds of what is left."""
    state, size = lossy(rank), 70_000
    ledger = Ledger([size])
    for step in range(8):
        (gradient,) = drawn([size], rank, step)
        there = gradient.to(device, copy=True)
        state.average(there)
        ledger.enter([gradient], [there.cpu()])
    saved = state.state_dict()
    ledger.close(state)
    state.close()
    resumed = BoundedLoss("dblp", timeout_s=60)
    resumed.load_state_dict(saved)
    added = torch.zeros(size, device=device)
    resumed.average(added)
    return ledger, added.cpu().numpy()


def test_what_an_average_lost_is_added_after_a_checkpoint():
    assert_added(values(launch(averaged, 2)))


def assert_added(outcomes):
    assert_complete([ledger for ledger, _ in outcomes])
    for ledger, _ in outcomes:
        assert set(ledger.left) == {0}  # one parameter, however many tensors have come
    left = sum(ledger.left[0].astype(np.float64) for ledger, _ in outcomes)
    for _, added in outcomes:
        np.testing.assert_allclose(2 * added, left, rtol=1e-5, atol=1e-5)
    assert np.abs(left).max() > 0


# Phases.

# The norm rises fourfold, and every other step is looked at.
FACTORS = [1.0] * 6 + [4.0] * 4
HELD = [True] * 3 + [False] * 4 + [True] * 2 + [False]


def followed(rank):
    """It returns what each step held for critical, and its largest loss; then a state is loaded."""
    dblp, phase = preset("dblp", low=0.0, high=0.5), GradientNorm(every_rounds=2)
    state = lossy(rank, dblp, phase=phase, filling="zero")
    held, lost = [], []
    for factor in FACTORS:
        held.append(state.critical)
        gradients = [factor * gradient for gradient in drawn(SIZES, rank)]
        exchange(state, gradients, PARAMETERS)
        lost.append(max(bucket.loss for bucket in last(state).buckets))
    assert residuals_in(state) == {}  # a filling without memory
    resumed = BoundedLoss(mode="local", phase="gradient-norm")
    assert resumed.critical
    resumed.load_state_dict(state.state_dict())
    saved, again = (
        {key: one.state_dict()[key] for key in ("phase", "step")} for one in (state, resumed)
    )
    return held, lost, (saved, again), resumed.critical


def rescaled(rank):
    """The gradients stay as they are; the scaler doubles its scale, and skips a step."""
    scale = 1024.0
    scaler: Any = SimpleNamespace(get_scale=lambda: scale)
    state = BoundedLoss("none", phase=GradientNorm(every_rounds=2), scaler=scaler, timeout_s=60)
    held = []
    for step in range(9):
        scale *= 2 if step == 4 else 1
        factor = math.inf if step == 6 else scale
        exchange(state, [factor * gradient for gradient in drawn(SIZES, rank)], PARAMETERS)
        held.append(state.critical)
    return held


def test_a_scale_is_no_change_of_the_norm_and_a_skipped_step_tells_nothing():
    for held in values(launch(rescaled, 2)):
        assert held == [True] * 2 + [False] * 7


def test_critical_phases_lose_less_and_all_ranks_follow_the_norm_of_the_mean():
    for held, lost, (saved, again), resumed in values(launch(followed, 2)):
        assert held == HELD
        # The first two steps go through the process group.
        assert [loss > 0 for loss in lost[2:]] == [not critical for critical in HELD[2:]]
        assert max(lost) <= 0.5
        assert saved == again
        assert saved["phase"]["_previous"] > 0
        assert saved["step"] == len(FACTORS)
        assert resumed is False


# Buckets.


def changing(rank):
    """Buckets that change in the middle of training; each step's mean must be right."""
    state = BoundedLoss("none", timeout_s=60)
    carried, right = [], []
    others = [torch.zeros(2000), *PARAMETERS[1:]]
    for step in range(9):
        parameters = PARAMETERS if step < 4 else others
        sizes = [parameter.numel() for parameter in parameters]
        means = exchange(state, drawn(sizes, rank, step), parameters)
        everyone = (drawn(sizes, other, step) for other in range(2))
        expected = [(one + two) / 2 for one, two in zip(*everyone, strict=True)]
        right.append(all(map(torch.equal, means, expected)))
        carried.append(last(state).carried_by)
    return carried, right


def test_buckets_that_change_are_complete_until_they_are_known_again():
    for carried, right in values(launch(changing, 2)):
        assert all(right)
        first = ["process group"] * 2 + ["transport"] * 2
        assert carried == first + ["process group"] * 2 + ["transport"] * 3


def local(rank, mode):
    state = BoundedLoss(mode=mode)
    gradients = drawn(SIZES, rank)
    for _ in range(3):
        means = exchange(state, gradients, PARAMETERS)
    return all(map(torch.equal, means, gradients)), state.last


def test_the_mode_local_and_a_single_rank_send_nothing():
    pair, single = launch(local, 2, mode="local"), launch(local, 1, mode="bounded")
    for kept, report in (*values(pair), *values(single)):
        assert kept
        assert report.carried_by == "nothing"
        assert (report.bytes_sent, report.bytes_received) == (0, 0)


@pytest.mark.parametrize("ranks", [3, pytest.param(8, marks=pytest.mark.long)])
def test_a_rank_needs_at_most_five_times_the_gradients_memory(ranks):
    (ratio,) = memory_ratios(ranks, buckets=4, megabytes=10, chosen=("sharded",)).values()
    assert ratio < 5
