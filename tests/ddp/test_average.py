"""One tensor by itself: its mean over all ranks, with what is lost owed to the next one's."""

import itertools
import math

import numpy as np
import pytest
import torch

from testbed.ddp import BoundedLoss, InputError
from tests.ddp.ranks import Books, drawn, fake_bucket, launch, require_paid_or_owed, values

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
    books = Books([SHAPE])
    for step in range(STEPS):
        mine = tensor(rank, step)
        before = mine.clone()
        state.average(mine)
        books.enter([before], [mine])
    with pytest.raises(InputError, match="hook: this BoundedLoss is in use by average; valid: "):
        state.hook(state, fake_bucket(mine, [mine], last=True))
    return right, books.close(state)


def test_means_are_those_in_rank_order_and_what_was_lost_is_owed():
    outcomes = values(launch(averages, 2))
    for right, books in outcomes:
        assert right == [True] * 10
        assert set(books.owed) == {0}  # one parameter, however many tensors have come
    require_paid_or_owed([books for _, books in outcomes])
    assert any(books.owed[0].any() for _, books in outcomes)
