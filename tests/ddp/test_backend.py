"""The c10d backend `bounded`: collectives, and DDP and PyTorch's own hooks over it."""

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from tests.ddp.ranks import drawn, launch, model, train, values, weights, wrapped

STEPS = 6


def trained(rank, hook, group):
    ddp = wrapped(model(), process_group=group)
    if hook == "fp16":
        ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(group, 2, start_powerSGD_iter=2, min_compression_rate=1)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(ddp, STEPS, rank)
    return weights(ddp)


def hooks(rank):
    """The weights after training over the backend and over Gloo, by hook."""
    gloo = dist.new_group(backend="gloo")
    ours = {hook: trained(rank, hook, dist.group.WORLD) for hook in ("none", "fp16", "powerSGD")}
    # Over Gloo, PowerSGD's callbacks of three buckets would wait for each other.
    return ours, {hook: trained(rank, hook, gloo) for hook in ("none", "fp16")}


def test_ddp_and_the_hooks_of_pytorch_train_as_over_gloo():
    outcomes = values(launch(hooks, 3, backend="bounded"))
    for ours, gloo in outcomes:
        for hook, after in ours.items():
            assert np.array_equal(after, outcomes[0][0][hook])
        np.testing.assert_allclose(ours["none"], gloo["none"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ours["fp16"], gloo["fp16"], atol=1e-3)
        # It approximates: closer than the training moved the weights, and not the same.
        moved = np.abs(gloo["none"] - weights(model())).max()
        assert 0 < np.abs(ours["powerSGD"] - gloo["none"]).max() < moved


def collectives(rank):
    wrong = []
    for size in (0, 1, 5, 40_000, 1_200_007):
        (own,), everyone = drawn([size], rank), [drawn([size], other)[0] for other in range(3)]
        total = own.clone()
        dist.all_reduce(total)
        if not torch.equal(total, everyone[0] + everyone[1] + everyone[2]):
            wrong.append(("sum", size))
        mean = own.clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if not torch.equal(mean, (everyone[0] + everyone[1] + everyone[2]) / 3):
            wrong.append(("avg", size))
        dist.broadcast(own, 1)
        if not torch.equal(own, everyone[1]):
            wrong.append(("broadcast", size))
    return wrong


def test_collectives_of_all_sizes_reduce_in_the_order_of_ranks():
    assert values(launch(collectives, 3, backend="bounded")) == [[]] * 3
