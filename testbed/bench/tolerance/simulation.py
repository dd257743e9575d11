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
from numpy.typing import NDArray

from testbed.training import datasets, models
from testbed.training.filling import FILLINGS
from testbed.training.filling.base import SenderMemory
from testbed.training.learner import Replica
from testbed.transport import Leg, PayloadLayout, TransferReport
from testbed.transport.core.order import ChunkOrder, OrderContext
from testbed.transport.core.tolerance import required_chunks
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
    """

    name: str
    model: str
    dataset: Any
    batch_size: int
    rounds: int
    evaluate_every: int
    optimiser: dict[str, Any]
    chunk_bytes: int = 1456


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training.

    Args:
        loss: the share of the chunks that every receiver gives up, on both legs.
        cause: why it is lost; chunks lost in the network have no order that matters.
        order: name of the registry.
        filling: likewise; two with a plus between them are the gather's and the broadcast's.
        when: in all rounds, in the first third, or in the last two thirds, as in Fig. 1 of DBLP.
    """

    task: Task
    loss: float
    cause: Cause
    order: str
    filling: str
    seed: int
    when: When = "always"

    @property
    def name(self) -> str:
        """For selecting and showing."""
        parts = (self.task.name, self.cause, self.order, self.filling, self.when)
        return f"{'/'.join(parts)}/{self.loss:g}/s{self.seed}"

    def loss_in(self, round_number: int) -> float:
        """What is given up in a round."""
        early = round_number < self.task.rounds / 3
        hit = self.when == "always" or early == (self.when == "early")
        return self.loss if hit else 0.0


class _Leg:
    """One direction of the rounds: several senders, one receiver."""

    def __init__(
        self,
        case: Case,
        layout: PayloadLayout,
        leg: Leg,
        seeds: list[int],
        random: np.random.Generator,
    ) -> None:
        self._case, self._layout, self._leg, self._random = case, layout, leg, random
        gather, _, broadcast = case.filling.partition("+")
        one_way = broadcast if leg is Leg.BROADCAST else ""
        self._filling = FILLINGS.create(one_way or gather)
        self._orders: list[ChunkOrder] = [ORDERS.create(case.order, seed=seed) for seed in seeds]
        self._memories: list[SenderMemory] = [self._filling.sender_memory(layout) for _ in seeds]
        self._buffers = [layout.new_buffer() for _ in seeds]

    def pass_on(self, round_number: int, payloads: list[Any], out: NDArray[np.uint8]) -> None:
        """Send each payload, and write the estimate of their mean to `out`."""
        received = []
        for sender, payload in enumerate(payloads):
            memory = self._memories[sender]
            received.append(self._deliver(round_number, sender, memory.payload(payload)))
            memory.settle(_report(received[-1]))
        self._filling.estimate_mean(self._layout, self._buffers, received, out)

    def _deliver(
        self, round_number: int, sender: int, payload: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        layout = self._layout
        rows = layout.rows(payload)
        if self._case.cause == "network":
            order = self._random.permutation(layout.chunk_count)
        else:
            context = OrderContext(
                transfer=self._leg.transfer(round_number), layout=layout, rows=rows
            )
            order = self._orders[sender].permutation(context)
        enough = required_chunks(layout.chunk_count, self._case.loss_in(round_number))
        mask = np.zeros(layout.chunk_count, dtype=np.bool_)
        mask[order[:enough]] = True
        layout.rows(self._buffers[sender])[mask] = rows[mask]
        return mask


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
    gather = _Leg(case, layout, Leg.GATHER, workers, random)
    broadcasts = [_Leg(case, layout, Leg.BROADCAST, [server], random) for _ in learners]
    gradients = [layout.new_buffer() for _ in learners]
    mean, update = layout.new_buffer(), layout.new_buffer()
    curve: list[tuple[int, float | None]] = []
    for number in range(task.rounds):
        for learner, gradient in zip(learners, gradients, strict=True):
            learner.gradient(layout.floats(gradient))
        gather.pass_on(number, gradients, mean)
        for learner, broadcast in zip(learners, broadcasts, strict=True):
            broadcast.pass_on(number, [mean], update)
            learner.apply(layout.floats(update), rates)
        if number == task.rounds - 1 or (number + 1) % task.evaluate_every == 0:
            scores = [learner.evaluate() for learner in learners]
            curve.append((number + 1, _finite(float(np.mean(scores)))))
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
    }


def _finite(score: float) -> float | None:
    """None for the score of a model that has diverged, which JSON has no number for."""
    return round(score, 5) if math.isfinite(score) else None


def _report(received: NDArray[np.bool_]) -> TransferReport:
    """What a sender learns of a transfer; times and bytes mean nothing here."""
    return TransferReport(
        transfer=0,
        peer="receiver",
        role="sender",
        chunk_count=len(received),
        chunks_received=int(received.sum()),
        received=received,
        passes=1,
        chunks_sent=len(received),
        bytes_sent=0,
        bytes_received=0,
        control_bytes=0,
        duplicates=0,
        retransmitted_bytes=0,
        began_s=0.0,
        ended_s=0.0,
    )
