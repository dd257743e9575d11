"""Parameters and gradients of all shapes that PyTorch allows: as with DDP's own all-reduce."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from testbed.ddp import BoundedLoss, InputError
from tests.ddp.ranks import batch, exchange, last, launch, values, weights
from tests.ddp.test_equal_to_ddp import RELIABLE


class Odd(nn.Module):
    """Layers without elements, a scalar, and weights in another order of memory."""

    def __init__(self, unused=False):
        super().__init__()
        torch.manual_seed(1)
        self.alone = nn.Parameter(torch.zeros(3, 0, 2))  # its bucket, the last one, has no more
        self.first = nn.Linear(30, 64)
        self.empty = nn.Linear(64, 0)
        self.scalar = nn.Parameter(torch.tensor(0.5))
        image = torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last)
        self.image = nn.Parameter(image)
        self.transposed = nn.Parameter(torch.randn(5, 128).T)
        self.sometimes = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        if unused:
            self.never = nn.Linear(7, 7)
        self.unused, self.step = unused, 0

    def forward(self, inputs):
        hidden = torch.tanh(self.first(inputs + self.alone.sum()))
        if self.step % 3 or not self.unused:
            hidden = hidden + self.sometimes(hidden)
        image = nn.functional.conv2d(hidden.reshape(-1, 4, 4, 4), self.image, padding=1)
        nothing = self.empty(hidden).sum(1, keepdim=True)
        return (image.flatten(1) @ self.transposed).sum(1, keepdim=True) * self.scalar + nothing


class Nothing(nn.Module):
    """No parameter has elements."""

    def __init__(self):
        super().__init__()
        self.empty = nn.Linear(30, 0)

    def forward(self, inputs):
        return self.empty(inputs).sum(1, keepdim=True)


class Again(nn.Module):
    """Layers whose outputs are computed anew in a backward pass inside of the backward pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList([nn.Linear(30, 30) for _ in range(3)])

    def forward(self, inputs):
        hidden = inputs.requires_grad_()
        for layer in self.layers:
            hidden = checkpoint(layer, torch.tanh(hidden), use_reentrant=True)
        return hidden.sum(1, keepdim=True)


def one_parameter():
    torch.manual_seed(1)
    return nn.Linear(30, 1, bias=False)


MODELS = {
    "odd": (Odd, {}),
    "odd, views": (Odd, {"gradient_as_bucket_view": True}),
    "odd, unused": (partial(Odd, unused=True), {"find_unused_parameters": True}),
    "all empty": (Nothing, {}),
    "again": (Again, {}),
    "one parameter": (one_parameter, {}),
    "one parameter, static graph": (one_parameter, {"static_graph": True}),
}


# So few that parts share the places where gradients arrive.
FEW = {**RELIABLE, "collective": "server", "transfers_in_flight": 2}


def trained(make, options, rank, settings):
    net = make()
    # A bucket for each parameter, so that some have no elements.
    ddp = DistributedDataParallel(net, bucket_cap_mb=1e-6, **options)
    if settings is not None:
        state = BoundedLoss(**settings)
        ddp.register_comm_hook(state, state.hook)
    optimiser = torch.optim.SGD(ddp.parameters(), lr=1e-4, momentum=0.9)
    for step in range(6):
        net.step = step
        inputs, targets = batch(step, rank)
        optimiser.zero_grad()
        nn.functional.mse_loss(ddp(inputs), targets).backward()
        optimiser.step()
    if settings is not None:
        assert (last(state).step, last(state).carried_by) == (5, "transport")
        state.close()
    return weights(ddp)


def all_models(rank):
    return {
        name: [trained(make, options, rank, settings) for settings in (None, RELIABLE, FEW)]
        for name, (make, options) in MODELS.items()
    }


def test_models_of_odd_shapes_train_as_with_the_all_reduce():
    outcomes = values(launch(all_models, 3))
    for name in MODELS:
        for theirs, *ours in (outcome[name] for outcome in outcomes):
            for way, flat in enumerate(ours):
                np.testing.assert_allclose(flat, theirs, rtol=1e-5, atol=1e-6, err_msg=name)
                assert np.array_equal(flat, outcomes[0][name][1 + way])


def refusals(_):
    state = BoundedLoss(timeout_s=60)
    for _ in range(3):
        state.average(torch.zeros(0, 4))
    errors = []
    for gradient in (
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3, dtype=torch.int32),
        torch.zeros(3).to_sparse(),
        torch.zeros(4, 3).T,
    ):
        with pytest.raises(InputError) as caught:
            exchange(BoundedLoss(timeout_s=60), [gradient], [torch.zeros(3)])
        errors.append(str(caught.value))
    return last(state).carried_by, errors


def test_what_cannot_be_averaged_is_refused_in_one_line():
    kinds = ["has elements of torch.complex64", "has elements of torch.int32"]
    kinds += ["is sparse (torch.sparse_coo)", "is not contiguous"]
    valid = "; valid: dense, contiguous float32, float64, float16 or bfloat16"
    for carried_by, errors in values(launch(refusals, 2)):
        assert carried_by == "transport"
        assert errors == [f"a bucket's gradient {kind}{valid}" for kind in kinds]


def alternating(rank):
    """The buckets change in each step, so also in those that open an exchange."""
    state, carried_by = BoundedLoss(**RELIABLE), []
    for step in range(6):
        sizes = (3000,) if step % 2 else (5000, 2000)
        gradients = [torch.full((size,), float(rank + step)) for size in sizes]
        means = exchange(state, gradients, [torch.zeros(size) for size in sizes])
        assert all(bool((mean == 1 + step).all()) for mean in means)
        carried_by.append(last(state).carried_by)
    return carried_by


def test_buckets_that_change_when_an_exchange_opens_go_through_the_process_group():
    assert values(launch(alternating, 3)) == 3 * [6 * ["process group"]]
