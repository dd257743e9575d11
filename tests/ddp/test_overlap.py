"""DDP's backward pass goes on while the means of its buckets are made."""

import datetime

import torch.distributed as dist
from torch import nn

from testbed.ddp import BoundedLoss
from tests.ddp.ranks import batch, last, launch, model, values, wrapped
from tests.ddp.test_equal_to_ddp import RELIABLE

STEPS, WATCHED = 4, 3  # the first two steps go through the process group


def store():
    return dist.distributed_c10d._get_default_store()


def behind(rank):
    """Two modules in one backward pass, which first comes to the second's three buckets.

    Rank 1 is behind in one step: it begins when rank 0 has taken a bucket of the first module.
    """
    nets = [nn.Linear(30, 30), model()]
    ddps = [wrapped(net) for net in nets]
    states = [BoundedLoss(**RELIABLE) for _ in ddps]
    taken: list[int] = []
    watched = False

    def hook(place, bucket):
        future = states[place].hook(states[place], bucket)
        if watched and rank == 0:
            taken.append(place)
            if set(taken) == {0, 1}:
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
            # It never comes if rank 0 waits for the mean of any bucket.
            store().wait(["both"], datetime.timedelta(seconds=60))
        loss.backward()
        reports = [last(state) for state in states]
    for state in states:
        state.close()
    means = [parameter.grad for net in nets for parameter in net.parameters()]
    same = [mean.tolist() for mean in means if mean is not None]
    return [(report.step, report.carried_by) for report in reports], same


def test_the_backward_pass_goes_on_while_means_of_both_modules_are_made():
    outcomes = values(launch(behind, 2))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 2 * [(STEPS - 1, "transport")]
