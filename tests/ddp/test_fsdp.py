"""FSDP2: each shard's gradients are averaged over the replicas, which stay identical."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from testbed.ddp import BoundedLoss, InputError
from tests.ddp.ranks import batch, launch, model, values
from tests.ddp.test_equal_to_ddp import RELIABLE

STEPS = 5
LOSSY = {"rate_bps": 200e6, "chunk_bytes": 1440, "timeout_s": 60}


def sharded(mesh, reduced_as=None):
    net = model().to(mesh.device_type)
    policy = MixedPrecisionPolicy(reduce_dtype=reduced_as)
    for module in (net[0], net[2], net[4], net):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    assert isinstance(net, FSDPModule)
    return net


def train(net, rank, device, after=lambda: None):
    """Each step's gradient is of two batches."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimiser.zero_grad()
        for half in range(2):
            net.set_requires_gradient_sync(half == 1)
            inputs, targets = (tensor.to(device) for tensor in batch(2 * step + half, rank))
            nn.functional.mse_loss(net(inputs), targets).backward()
        optimiser.step()
        after()


def whole(net):
    flat = [parameter.full_tensor().detach().reshape(-1) for parameter in net.parameters()]
    return torch.cat(flat).cpu().numpy()


def trained(rank, mesh, reduced_as=None, **settings):
    net, reports = sharded(mesh["shard"], reduced_as), []
    state = BoundedLoss(group=mesh["replicate"].get_group(), **settings)
    state.hook_into(net)
    train(net, rank, mesh.device_type, after=lambda: reports.append(state.last))
    state.close()
    return whole(net), reports


def all_ways(rank, device="cpu"):
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("replicate", "shard"))
    expected = sharded(mesh)
    train(expected, rank, device)
    draws = np.random.default_rng(rank)
    lossy = {**LOSSY, "leave_out": lambda count: draws.random(count) < 0.3}
    ways = {
        "reliable": trained(rank, mesh, **RELIABLE),
        "half": trained(rank, mesh, torch.bfloat16, **RELIABLE),
        "bounded": trained(rank, mesh, protocol="fixed-high", **lossy),
    }
    return whole(expected), ways, refusals(mesh, expected)


def refusals(mesh, native):
    errors = []
    right = mesh["replicate"].get_group()
    partly = model()
    fully_shard(partly[0], mesh=mesh["shard"])
    plain = sharded(mesh["shard"])
    plain.register_parameter("scale", nn.Parameter(torch.ones(3)))
    ours = sharded(mesh["shard"])
    for net, group in ((partly, right), (plain, right), (native, right), (ours, dist.group.WORLD)):
        try:
            BoundedLoss(mode="local", group=group).hook_into(net)
        except InputError as error:
            errors.append(str(error))
    return errors


def test_replicas_are_identical_and_train_as_with_fsdps_own_all_reduce():
    assert_alike(values(launch(all_ways, 4)))


def assert_alike(outcomes):
    expected = outcomes[0][0]
    for _, ways, refused in outcomes:
        for name, (ours, reports) in ways.items():
            assert np.array_equal(ours, outcomes[0][1][name][0]), name
            carried = [report.carried_by for report in reports]
            assert carried == ["process group"] * 2 + ["transport"] * (STEPS - 2)
            assert [report.step for report in reports] == list(range(STEPS))
            # Linear layers in the order of the backward pass; the last one is the model's own.
            sizes = [[bucket.elements for bucket in report.buckets] for report in reports]
            assert all(sorted(size) == sorted(sizes[0]) for size in sizes)
            assert sum(sizes[0]) >= len(expected) / 2
            assert all(report.wait_s > 0 for report in reports)
        np.testing.assert_allclose(ways["reliable"][0], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ways["half"][0], expected, atol=0.05)
        starts = ["the model is 'Sequential', which is not", "the parameter scale is not sharded"]
        starts.append("the parameter 0.weight is replicated by FSDP itself")
        starts.append("the ranks [")
        assert [line.startswith(start) for line, start in zip(refused, starts, strict=True)] == (
            [True] * 4
        ), refused
    # Rank 0 averages half of its shard's gradients, of which some were lost.
    lost = [bucket.loss for step in outcomes[0][1]["bounded"][1][2:] for bucket in step.buckets]
    assert 0 < max(lost) < 0.5
    assert not np.array_equal(outcomes[0][1]["bounded"][0], expected)
