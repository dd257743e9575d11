"""A run that was killed and resumes from its checkpoint equals one that was not."""

import numpy as np
import torch

from testbed.ddp import BoundedLoss
from tests.ddp.ranks import die, launch, model, train, values, weights, wrapped

STEPS = 8
SAVED_AFTER = 4


def run(rank, folder, *, until=STEPS, resume=False):
    """Trains up to `until`; saves after SAVED_AFTER steps; is killed if that is not the end."""
    file = folder / f"rank-{rank}.pt"
    net = model()
    first, saved = 0, None
    if resume:
        saved = torch.load(file, weights_only=True)
        net.load_state_dict(saved["model"])
        first = SAVED_AFTER
    ddp = wrapped(net)
    state = BoundedLoss(mode="reliable", timeout_s=60)
    ddp.register_comm_hook(state, state.hook)
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    if saved is not None:
        optimiser.load_state_dict(saved["optimiser"])
        state.load_state_dict(saved["exchange"])
    for step in range(first, until):
        train(ddp, 1, rank, first=step, optimiser=optimiser)
        if step + 1 == SAVED_AFTER:
            parts = {"model": net, "optimiser": optimiser, "exchange": state}
            torch.save({key: part.state_dict() for key, part in parts.items()}, file)
    if until < STEPS:
        die()
    return weights(ddp)


def test_a_killed_run_resumes_as_if_it_had_not_been(tmp_path):
    whole = values(launch(run, 2, folder=tmp_path))
    for file in tmp_path.iterdir():
        file.unlink()
    launch(run, 2, killed=[0, 1], folder=tmp_path, until=6)
    resumed = values(launch(run, 2, folder=tmp_path, resume=True))
    assert all(np.array_equal(weights_of, whole[0]) for weights_of in (*whole, *resumed))
