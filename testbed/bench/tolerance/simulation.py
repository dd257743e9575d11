"""Trains several workers in one process, with a receiver's stop in place of the network.

Learners, chunk orders and fillings are those of a run.

Every transfer loses exactly what a receiver of tolerance P gives up, for one of two causes. On
links without loss it stops when 1 - P of the chunks are there, and they come in the order in which
they were sent: `early-stop`. On lossy links what is missing at that moment is random, for each
receiver by itself: `network`. So a run takes seconds and depends on nothing but its seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from testbed.bench.lossy_leg import LossyLeg
from testbed.training import datasets, models
from testbed.training.filling import FILLINGS
from testbed.training.learner import Replica
from testbed.training.lost_chunk_effects import divergence
from testbed.transport import Leg, PayloadLayout
from testbed.transport.policies.order import ORDERS

WORKERS = 3
Cause = Literal["early-stop", "network"]
When = Literal["always", "early", "late"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learnt, and for how long.

    Args:
        model, dataset: as in an experiment's training section.
        batch_size: examples per worker and round.
        rounds, evaluate_every: how many, and how often the test metric is taken.
        optimiser: name and options of `optimisers.build`.
        chunk_bytes: the unit of loss; the experiments' own by default.
        evaluated: how many of the replicas are evaluated, from the first; their mean counts.
    """

    name: str
    model: str
    dataset: Any
    batch_size: int
    rounds: int
    evaluate_every: int
    optimiser: dict[str, Any]
    chunk_bytes: int = 1456
    evaluated: int = WORKERS


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training.

    Args:
        loss: the share of the chunks that every receiver gives up, on both legs.
        cause: why it is lost; chunks lost in the network have no order that matters.
        order: name of the registry.
        filling: likewise; two with a plus between them are the gather's and the broadcast's.
        when: in all rounds, in the first third, or in the last two thirds, as in Fig. 1 of DBLP.
        link_loss: with early-stop, the probability that a link loses a chunk on its way, for each
            receiver by itself; below 1. How much is given up in all stays `loss`.
        measure_every: rounds after which the replicas' divergence is measured; 0: never.
    """

    task: Task
    loss: float
    cause: Cause
    order: str
    filling: str
    seed: int
    when: When = "always"
    link_loss: float = 0.0
    measure_every: int = 0

    @property
    def name(self) -> str:
        """For selecting and showing."""
        cause = f"link-{self.link_loss:g}" if self.link_loss else self.cause
        parts = (self.task.name, cause, self.order, self.filling, self.when)
        return f"{'/'.join(parts)}/{self.loss:g}/s{self.seed}"

    def loss_in(self, round_number: int) -> float:
        """What is given up in a round."""
        early = round_number < self.task.rounds / 3
        hit = self.when == "always" or early == (self.when == "early")
        return self.loss if hit else 0.0


def run(case: Case) -> dict[str, Any]:
    """Train one case; return its record, whose metric is None where the model diverged."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    task = case.task
    dataset = datasets.load(task.dataset)
    split = datasets.Equal()
    shares = datasets.shares(split, dataset.groups, WORKERS, case.seed)
    learners = [
        Replica(
            models.build(
                task.model, case.seed, classes=dataset.classes, input_shape=dataset.input_shape
            ),
            dataset=dataset,
            batches=datasets.batches(own, task.batch_size, case.seed, rank),
            optimiser=task.optimiser,
        )
        for rank, own in enumerate(shares)
    ]
    layers = models.layer_map(task.model, classes=dataset.classes, input_shape=dataset.input_shape)
    layout = PayloadLayout(models.layer_sizes(layers), task.chunk_bytes)
    rates = task.optimiser["learning_rate"]
    # Every host draws its orders from a seed of its own; the server sends to all in one order.
    draws = np.random.SeedSequence([case.seed, 4])
    *workers, server = draws.generate_state(WORKERS + 1).tolist()
    random = np.random.default_rng(draws.spawn(1)[0])
    gather = _leg(case, layout, Leg.GATHER, workers, random)
    broadcasts = [_leg(case, layout, Leg.BROADCAST, [server], random) for _ in learners]
    gradients = [layout.new_buffer() for _ in learners]
    mean, update = layout.new_buffer(), layout.new_buffer()
    replicas = [np.empty(layout.element_count, dtype=np.float32) for _ in learners]
    curve: list[tuple[int, float | None]] = []
    drift: list[tuple[int, float | None]] = []
    for number in range(task.rounds):
        for learner, gradient in zip(learners, gradients, strict=True):
            learner.gradient(layout.floats(gradient))
        loss = case.loss_in(number)
        gather.pass_on(number, gradients, loss, mean)
        for learner, broadcast in zip(learners, broadcasts, strict=True):
            broadcast.pass_on(number, [mean], loss, update)
            learner.apply(layout.floats(update), rates)
        last = number == task.rounds - 1
        if last or (number + 1) % task.evaluate_every == 0:
            scores = [learner.evaluate() for learner in learners[: task.evaluated]]
            curve.append((number + 1, _finite(float(np.mean(scores)))))
        if case.measure_every and (last or (number + 1) % case.measure_every == 0):
            for learner, weights in zip(learners, replicas, strict=True):
                learner.weights(weights)
            drift.append((number + 1, divergence(replicas)))
    return {
        "task": task.name,
        "model": task.model,
        "dataset": str(datasets.parameters(task.dataset).name),
        "metric": dataset.task.metric,
        "rounds": task.rounds,
        "workers": WORKERS,
        "parameters": layout.element_count,
        "chunks": layout.chunk_count,
        "loss": case.loss,
        "cause": case.cause,
        "order": case.order,
        "filling": case.filling,
        "when": case.when,
        "seed": case.seed,
        "final": curve[-1][1],
        "curve": curve,
        "optimiser": task.optimiser["name"],
        "learning_rate": rates,
        "link_loss": case.link_loss,
        "realised_loss": {"gather": _lost([gather]), "broadcast": _lost(broadcasts)},
        "divergence": drift,
    }


def _leg(
    case: Case, layout: PayloadLayout, leg: Leg, seeds: list[int], random: np.random.Generator
) -> LossyLeg:
    gather, _, broadcast = case.filling.partition("+")
    filling = FILLINGS.create((broadcast if leg is Leg.BROADCAST else "") or gather)
    orders = [ORDERS.create(case.order, seed=seed) for seed in seeds]
    draws = random if case.cause == "network" or case.link_loss else None
    return LossyLeg(layout, leg, filling, orders, draws, case.link_loss)


def _lost(legs: list[LossyLeg]) -> float:
    return sum(leg.lost_chunks for leg in legs) / sum(leg.sent_chunks for leg in legs)


def _finite(score: float) -> float | None:
    """None for the score of a model that has diverged, which JSON has no number for."""
    return round(score, 5) if math.isfinite(score) else None
