"""One tensor by itself: its mean over all ranks, with what is lost owed to the next one's."""

import math

import numpy as np
import pytest
import torch

from testbed.ddp import BoundedLoss, InputError
from tests.ddp.ranks import (
    Ledger,
    drawn,
    fake_bucket,
    last,
    launch,
    lossy,
    require_paid_or_owed,
    values,
)

SHAPE = (100, 70)


def tensor(rank, step, dtype=torch.float32):
    return drawn([math.prod(SHAPE)], rank, step)[0].reshape(SHAPE).to(dtype)


def averages(rank):
    """Whether the means in each type are right."""
    right = []
    for dtype in (torch.float32, torch.bfloat16):
        state = BoundedLoss(mode="reliable", rate_bps=math.inf, timeout_s=60)
        for step in range(4):
            mine = torch.nn.Parameter(tensor(rank, step, dtype))
            state.average(mine)
            one, two = (tensor(index, step, dtype).float() for index in range(2))
            right.append(torch.equal(mine.detach(), ((one + two) / 2).to(dtype)))
        right.append(last(state).carried_by == "transport")
        state.close()
    other = BoundedLoss(mode="local")
    other.average(mine)
    with pytest.raises(InputError, match="hook: this BoundedLoss is in use by average; valid: "):
        other.hook(other, fake_bucket(mine, [mine], last=True))
    return right


def test_means_are_those_in_rank_order():
    assert values(launch(averages, 2)) == 2 * [[True] * 10]


def owing(rank, device="cpu"):
    """The ledger of averages with loss, and what a new exchange pays of what is owed."""
    state, size = lossy(rank), 70_000
    ledger = Ledger([size])
    for step in range(8):
        (mine,) = drawn([size], rank, step)
        there = mine.to(device, copy=True)
        state.average(there)
        ledger.enter([mine], [there.cpu()])
    saved = state.state_dict()
    ledger.close(state)
    state.close()
    resumed = BoundedLoss("dblp", timeout_s=60)
    resumed.load_state_dict(saved)
    paid = torch.zeros(size, device=device)
    resumed.average(paid)
    return ledger, paid.cpu().numpy()


def test_what_an_average_lost_is_owed_and_paid_after_a_checkpoint():
    assert_paid(values(launch(owing, 2)))


def assert_paid(outcomes):
    """What `owing` has found on both ranks."""
    require_paid_or_owed([ledger for ledger, _ in outcomes])
    for ledger, _ in outcomes:
        assert set(ledger.owed) == {0}  # one parameter, however many tensors have come
    owed = sum(ledger.owed[0].astype(np.float64) for ledger, _ in outcomes)
    for _, paid in outcomes:
        np.testing.assert_allclose(2 * paid, owed, rtol=1e-5, atol=1e-5)
    assert np.abs(owed).max() > 0
