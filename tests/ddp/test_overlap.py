"""What hides the exchange: DDP's backward pass goes on meanwhile.

Rank 1 is behind in one step. Rank 0 says how far its own backward pass has come by then.
"""

import datetime
from typing import Any

import torch.distributed as dist
from torch import nn

from testbed.ddp import BoundedLoss
from tests.ddp.ranks import batch, last, launch, model, values, wrapped
from tests.ddp.test_fsdp import RELIABLE

SETTINGS: Any = RELIABLE
STEPS, WATCHED = 4, 3  # the first two steps go through the process group


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

    def watch(_, inputs):
        inputs[0].register_hook(at_gradient)

    def at_gradient(_):
        if rank == 0:
            seen.append(len(given))
            store().set("computed", "yes")

    ddp.register_comm_hook(state, hook)
    for step in range(STEPS):
        inputs, targets = batch(step, rank)
        net.zero_grad()
        if step == WATCHED:
            net[2].register_forward_pre_hook(watch)
        loss = nn.functional.mse_loss(ddp(inputs), targets)
        given.clear()
        if (step, rank) == (WATCHED, 1):
            wait_for("computed")  # which never comes if rank 0 waits for this rank's gradient
        loss.backward()
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
