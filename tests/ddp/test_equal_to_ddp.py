"""The hook in the mode `reliable` trains as DDP's own all-reduce does."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join

from testbed.ddp import BoundedLoss
from testbed.transport import preset
from tests.ddp.ranks import (
    batch,
    drawn,
    exchange,
    last,
    launch,
    model,
    train,
    values,
    weights,
    wrapped,
)

STEPS = 6
# Over datagrams. Without a rate, kernel TCP would carry them on one machine.
RELIABLE: dict[str, Any] = {
    "mode": "reliable",
    "timeout_s": 60,
    "rate_bps": math.inf,
    "chunk_bytes": 1440,
}


def hooked(net, *, group=None, **settings):
    ddp = wrapped(net, process_group=group)
    state = BoundedLoss(group=group, **{**RELIABLE, **settings})
    ddp.register_comm_hook(state, state.hook)
    return ddp, state


def trained(rank, rows=8, device="cpu", **settings):
    reports = []
    ddp, state = hooked(model().to(device), **settings)
    after = {"after": lambda _: reports.append(state.last)}
    train(ddp, STEPS, rank, rows=rows, device=device, **after)
    return weights(ddp), reports


def both(rank, collective, device="cpu"):
    """The weights after training with DDP's own all-reduce; those with ours, and its reports."""
    rows = (8, 3, 5)[rank]  # the last batches of an epoch
    ddp = wrapped(model().to(device))
    train(ddp, STEPS, rank, rows=rows, device=device)
    return weights(ddp), *trained(rank, rows, device, collective=collective)


@pytest.mark.parametrize("collective", ["server", "sharded"])
def test_weights_are_those_of_the_all_reduce_and_replicas_identical(collective):
    outcomes = values(launch(both, 3, collective=collective))
    assert_equal(outcomes)
    payload_bytes = 4 * len(outcomes[0][1])
    # Rank 0 of two others sends each the mean; of three owners, each sends two thirds twice.
    sent = {"server": 2, "sharded": 4 / 3}[collective] * payload_bytes
    assert sent < outcomes[0][2][-1].bytes_sent < 1.5 * sent
    assert outcomes[0][2][-1].wait_s > 0


def assert_equal(outcomes):
    for expected, ours, reports in outcomes:
        assert np.array_equal(ours, outcomes[0][1])
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
        assert [report.carried_by for report in reports] == ["process group"] * 2 + [
            "transport"
        ] * 4
        assert [report.step for report in reports] == list(range(STEPS))
        line = r"step 5: 3 buckets by transport, .* MB sent, .* received, at most 0\.0% not sent .*"
        assert re.fullmatch(line, str(reports[5]))
        line = r"step 0: 1 bucket by process group, bytes not counted, [\d.e+]+ ms not hidden"
        assert re.fullmatch(line, str(reports[0]))
        assert all(len(report.buckets) == 3 for report in reports[1:])
        assert all(bucket.loss == 0 for report in reports for bucket in report.buckets)


SIZES = (50_000, 1, 2_000)
PARAMETERS = [torch.zeros(size) for size in SIZES]


def in_rank_order(rank):
    """Returns whether means are those in rank order, bit for bit, by type and what carried them."""
    equal: dict[tuple[torch.dtype, str], bool] = {}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        state = BoundedLoss(**RELIABLE)
        for step in range(4):
            everyone = [[row.to(dtype) for row in drawn(SIZES, other, step)] for other in range(3)]
            means = exchange(state, everyone[rank], PARAMETERS)
            right = True
            for mean, *rows in zip(means, *everyone, strict=True):
                first, second, third = (row.float() for row in rows)
                right &= torch.equal(mean, ((first + second + third) / np.float32(3)).to(dtype))
            key = dtype, last(state).carried_by
            equal[key] = equal.get(key, True) and right
        state.close()
    return equal


def test_means_are_those_in_rank_order_in_each_type():
    for equal in values(launch(in_rank_order, 3)):
        assert len(equal) == 8
        assert all(equal.values())


def special_cases(rank):
    """Frozen parameters, accumulated gradients, and ranks with fewer batches."""
    frozen, frozen_state = hooked(model(frozen=True))
    before = frozen.module[2].weight.clone()
    train(frozen, 4, rank)
    assert torch.equal(frozen.module[2].weight, before)
    assert frozen_state.last.carried_by == "transport"

    accumulated, state = hooked(model())
    plain = wrapped(model())
    for step in range(4):
        for ddp in (accumulated, plain):
            ddp.zero_grad()
            with ddp.no_sync():
                inputs, targets = batch(100 + step, rank)
                nn.functional.mse_loss(ddp(inputs), targets).backward()
            inputs, targets = batch(step, rank)
            nn.functional.mse_loss(ddp(inputs), targets).backward()
    assert state.last.step == 3
    for ours, theirs in zip(accumulated.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)

    uneven, _ = hooked(model())
    with Join([uneven]):
        train(uneven, 4 + rank, rank)
    return weights(frozen), weights(uneven)


def test_frozen_parameters_accumulation_and_uneven_numbers_of_batches():
    outcomes = values(launch(special_cases, 2))
    for at in range(2):
        assert np.array_equal(outcomes[0][at], outcomes[1][at])


def two_groups(rank):
    """Rank 1 trains a model with rank 0 and another with rank 2, in turn."""
    groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    mine = [index for index, ranks in enumerate(([0, 1], [1, 2])) if rank in ranks]
    made = {}
    for index in mine:
        made[index] = hooked(model(), group=groups[index], collective="server")
    for step in range(4):
        for index, (ddp, _) in made.items():
            train(ddp, 1, rank, first=step + 50 * index)
    return {index: (weights(ddp), state.last.carried_by) for index, (ddp, state) in made.items()}


def test_two_process_groups_in_one_process():
    outcomes = values(launch(two_groups, 3))
    for index, (one, other) in enumerate(((0, 1), (1, 2))):
        (ours, carried_by), (theirs, _) = outcomes[one][index], outcomes[other][index]
        assert np.array_equal(ours, theirs)
        assert carried_by == "transport"
    assert not np.array_equal(outcomes[1][0][0], outcomes[1][1][0])


def over_kernel_tcp(rank):
    """The weights over datagrams, over kernel TCP, and over what is the default on one machine."""
    ways: list[dict[str, Any]] = [{}, {"protocol": preset("tcp-cubic")}, {"rate_bps": None}]
    return [trained(rank, **settings)[0] for settings in ways]


def test_kernel_tcp_gives_the_same_bits():
    ours, *others = (ways for of_rank in values(launch(over_kernel_tcp, 2)) for ways in of_rank)
    assert all(np.array_equal(other, ours) for other in others)
