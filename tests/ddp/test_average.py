"""One tensor by itself: its mean over all ranks, with what is lost owed to the next one's."""

import itertools
import math

import numpy as np
import pytest
import torch

from testbed.ddp import BoundedLoss, InputError
from tests.ddp.ranks import drawn, fake_bucket, launch, values

SHAPE = (100, 70)
STEPS = 8


def tensor(rank, step, dtype=torch.float32):
    return drawn([math.prod(SHAPE)], rank, step)[0].reshape(SHAPE).to(dtype)


def averages(rank):
    """The means in each type, and the books of an exchange with loss."""
    right = []
    for dtype in (torch.float32, torch.bfloat16):
        state = BoundedLoss(mode="reliable", rate_bps=math.inf, timeout_s=60)
        for step in range(4):
            mine = torch.nn.Parameter(tensor(rank, step, dtype))
            state.average(mine)
            one, two = (tensor(each, step, dtype).float() for each in range(2))
            right.append(torch.equal(mine.detach(), ((one + two) / 2).to(dtype)))
        assert state.last is not None
        right.append(state.last.carried_by == "transport")
        state.close()

    numbers = itertools.count()  # a third of each payload, however it is cut into batches
    state = BoundedLoss(
        "fixed-high",
        rate_bps=200e6,
        chunk_bytes=1440,
        timeout_s=60,
        leave_out=lambda count: np.array([next(numbers) % 3 == 1 for _ in range(count)]),
    )
    sent, applied = np.zeros(SHAPE), np.zeros(SHAPE)
    for step in range(STEPS):
        mine = tensor(rank, step)
        sent += mine.numpy()
        state.average(mine)
        applied += mine.numpy()
    owed = state.state_dict()["owed"]
    with pytest.raises(InputError, match="hook: this BoundedLoss is in use by average; valid: "):
        state.hook(state, fake_bucket(mine, [mine], last=True))
    return right, sent, applied, {slot: each.numpy() for slot, each in owed.items()}


def test_means_are_those_in_rank_order_and_what_was_lost_is_owed():
    told = values(launch(averages, 2))
    for right, _, applied, owed in told:
        assert right == [True] * 10
        assert np.array_equal(applied, told[0][2])
        assert set(owed) == {0}  # one parameter, however many tensors have come
    sent = sum(each[1] for each in told)
    owed = sum(each[3][0].astype(np.float64) for each in told).reshape(SHAPE)
    np.testing.assert_allclose(2 * told[0][2] + owed, sent, rtol=1e-4, atol=1e-3)
    assert np.abs(owed).max() > 0


def strided(rank):
    state = BoundedLoss(timeout_s=60)
    state.average(torch.zeros(SHAPE).T if rank else torch.zeros(SHAPE))


def test_a_tensor_that_cannot_be_sent_fails_on_all_ranks():
    outcomes = launch(strided, 2)
    assert outcomes[1].kind == "InputError"
    assert outcomes[1].error.startswith("a bucket's gradient is not contiguous; valid: dense, ")
    assert outcomes[0].error
