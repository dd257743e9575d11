"""What hides the exchange: DDP's backward pass goes on meanwhile, FSDP2's waits for each mean.

Rank 1 is behind in one step. Rank 0 says how far its own backward pass has come by then.
"""

import datetime
import time
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from testbed.ddp import BoundedLoss
from tests.ddp.ranks import batch, last, launch, model, values, wrapped
from tests.ddp.test_fsdp import RELIABLE, sharded

SETTINGS: Any = RELIABLE
STEPS, WATCHED = 4, 3  # the first two steps go through the process group
BEFORE_S = 0.3


def steps(net, rank, layers, *, before_backward, at_gradient):
    """In the watched step `before_backward()` is called, and `at_gradient(place)` once the gradient
    of what goes into the layer at that place has been computed."""
    for step in range(STEPS):
        watched = step == WATCHED

        def watch(layer, inputs, watched=watched):
            if watched:
                place = layers.index(layer)
                inputs[0].register_hook(lambda gradient: at_gradient(place))

        # Before FSDP's own, which puts the module's mean between its inputs and these.
        hooks = [layer.register_forward_pre_hook(watch, prepend=True) for layer in layers]
        inputs, targets = batch(step, rank)
        net.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        if watched:
            before_backward()
        loss.backward()
        for each in hooks:
            each.remove()


def store():
    return dist.distributed_c10d._get_default_store()


def wait_for(key):
    store().wait([key], datetime.timedelta(seconds=60))


def with_ddp(rank):
    net = model()
    ddp = wrapped(net)
    state = BoundedLoss(**SETTINGS)
    given: list[int] = []
    seen: list[int] = []

    def hook(_, bucket):
        given.append(bucket.index())
        return state.hook(state, bucket)

    def at_gradient(place):
        if rank == 0:
            seen.append(len(given))
            store().set("computed", "yes")

    def before_backward():
        given.clear()
        if rank == 1:
            wait_for("computed")  # which never comes if rank 0 waits for this rank's gradient

    ddp.register_comm_hook(state, hook)
    steps(ddp, rank, [net[2]], before_backward=before_backward, at_gradient=at_gradient)
    state.close()
    return last(state).carried_by, seen


def test_ddps_backward_pass_goes_on_while_the_means_of_its_first_buckets_are_made():
    (carried_by, seen), _ = values(launch(with_ddp, 2))
    assert carried_by == "transport"
    assert seen[0] >= 1  # buckets were under way


def with_two(rank):
    """Two modules in one backward pass. Rank 1 comes when rank 0 has given the second's buckets."""
    nets = [nn.Linear(30, 30), nn.Linear(30, 1)]
    ddps = [wrapped(net) for net in nets]
    states = [BoundedLoss(**SETTINGS) for _ in ddps]
    given: list[int] = []
    watched = False

    def hook(place, bucket):
        future = states[place].hook(states[place], bucket)
        if watched and rank == 0:
            given.append(place)
            if set(given) == {0, 1}:
                store().set("both", "yes")
        return future

    for place, ddp in enumerate(ddps):
        ddp.register_comm_hook(place, hook)
    reports = []
    for step in range(STEPS):
        watched = step == WATCHED
        inputs, targets = batch(step, rank)
        loss = nn.functional.mse_loss(ddps[1](ddps[0](inputs)), targets)
        if watched and rank == 1:
            wait_for("both")  # which never comes if rank 0 waits for the first one's means
        loss.backward()
        reports = [last(state) for state in states]
    for state in states:
        state.close()
    means = [each.grad for net in nets for each in net.parameters()]
    same = [each.tolist() for each in means if each is not None]
    return [(each.step, each.carried_by) for each in reports], same


def test_two_modules_means_are_made_at_once_in_one_backward_pass():
    told = values(launch(with_two, 2))
    assert told[0] == told[1]
    assert told[0][0] == 2 * [(STEPS - 1, "transport")]


def with_fsdp(rank):
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    net = sharded(mesh["shard"])
    seen: dict[int, bool] = {}
    state = BoundedLoss(group=mesh["replicate"].get_group(), **SETTINGS)
    state.hook_into(net)
    layers = [net[2], net[4], net[6]]

    def at_gradient(place):
        if rank == 0:
            seen[place] = store().check(["rank 1 computes"])
            store().set(f"at {place}", "yes")

    def before_backward():
        if rank == 1:
            wait_for("at 2")
            time.sleep(BEFORE_S)  # far longer than rank 0 needs to the next layer
            store().set("rank 1 computes", "yes")

    steps(net, rank, layers, before_backward=before_backward, at_gradient=at_gradient)
    state.close()
    return last(state).carried_by, seen


def test_fsdps_backward_pass_waits_for_the_mean_of_each_module():
    (carried_by, seen), _ = values(launch(with_fsdp, 2))
    assert carried_by == "transport"
    # The last module's gradient waits for no mean; below it, each waits for the one above.
    assert seen == {2: False, 1: True, 0: True}
