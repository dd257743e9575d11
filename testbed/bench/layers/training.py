"""Trains the task of an experiment in one process, while some tensors lose chunks in each gather.

Learners, data, schedule and rounds are those of the run, evaluated on the validation part. There is
no network: what a worker loses is filled with zeros, the mean reaches all workers whole.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.bench.layers.losses import Group, Losses
from testbed.run.simulated_learning import OwnRandomNumbers, torch_as_in_a_lab
from testbed.training.run_context import RunContext
from testbed.training.vectors import mean_into


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training.

    Args:
        groups: what loses; none for the training without loss.
        shares: how much each of them loses at most.
        hosts: the server and the workers.
        config: of a run with this seed.
    """

    groups: tuple[Group, ...]
    shares: tuple[float, ...]
    seed: int
    hosts: tuple[str, ...]
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """For showing."""
        lost = [
            f"{group.name}@{share:g}" for group, share in zip(self.groups, self.shares, strict=True)
        ]
        return f"{';'.join(lost) or 'without-loss'}/s{self.seed}"


def train(trial: Trial) -> dict[str, Any]:
    """Train; return the record, whose `value` is None where the model diverged.

    `lost` is the share of the groups' elements that was lost: losing whole chunks, it is below what
    was asked for.
    """
    context = RunContext.without_network(trial.config, trial.hosts)
    layout, ranks = context.layout, range(len(context.workers))
    lost = list(zip(trial.groups, trial.shares, strict=True))
    losses = Losses(layout, lost, trial.seed)
    gradients = [np.zeros(layout.element_count, dtype=np.float32) for _ in ranks]
    mean = np.empty(layout.element_count, dtype=np.float32)
    with torch_as_in_a_lab():
        learners = [
            OwnRandomNumbers(functools.partial(context.learner, name)) for name in context.workers
        ]
        for number in range(context.rounds):
            for rank, learner in enumerate(learners):
                learner.gradient(gradients[rank])
                losses.apply(gradients[rank], round_number=number, rank=rank)
            mean_into(gradients, mean)
            for learner in learners:
                learner.apply(mean, context.learning_rate(number))
        scores = [learner.evaluate() for learner in learners]
    return {
        "groups": [group.name for group in trial.groups],
        "shares": list(trial.shares),
        "seed": trial.seed,
        "metric": context.metric,
        "value": _mean(scores),
        "lost": losses.share,
    }


def _mean(scores: list[float | None]) -> float | None:
    known = [score for score in scores if score is not None and math.isfinite(score)]
    return statistics.fmean(known) if len(known) == len(scores) else None
