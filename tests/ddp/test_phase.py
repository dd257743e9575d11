"""Where a detector sets the phase, all ranks follow the norm of the mean, which all have."""

import torch

from testbed.ddp import BoundedLoss
from testbed.training.detector import GradientNorm
from testbed.transport import preset
from tests.ddp.ranks import drawn, exchange, last, launch, lossy, values

SIZES = (20_000, 6_000)
PARAMETERS = [torch.zeros(size) for size in SIZES]
# The norm rises fourfold, and every other step is looked at.
SCALES = [1.0] * 6 + [4.0] * 4
HELD = [True] * 3 + [False] * 4 + [True] * 2 + [False]


def followed(rank):
    """What each step held for critical, and the most that it lost; then a state that is loaded."""
    dblp, phase = preset("dblp", low=0.0, high=0.5), GradientNorm(every_rounds=2)
    state = lossy(rank, dblp, phase=phase)
    held, lost = [], []
    for scale in SCALES:
        held.append(state.critical)
        exchange(state, [scale * each for each in drawn(SIZES, rank)], PARAMETERS)
        lost.append(max(bucket.loss for bucket in last(state).buckets))
    resumed = BoundedLoss(mode="local", phase="gradient-norm")
    assert resumed.critical
    resumed.load_state_dict(state.state_dict())
    saved, again = state.state_dict()["phase"], resumed.state_dict()["phase"]
    return held, lost, (saved, again), resumed.critical


def test_all_ranks_follow_the_norm_of_the_mean():
    for held, lost, (saved, again), resumed in values(launch(followed, 2)):
        assert held == HELD
        # The first two steps go through the process group.
        assert [each > 0 for each in lost[2:]] == [not each for each in HELD[2:]]
        assert saved == again
        assert saved["_previous"] > 0
        assert resumed is False
