"""Trains one arm of an experiment with one learning rate, in one process and without a network.

Learners, detector, schedule, tolerances, chunk orders and fillings are those of the run. A receiver
stops as soon as its tolerance allows, on a path without loss: impairments have no part. Of a
tolerance that is no plain share of the chunks, it takes the largest share; `bounded-energy` stops
at its share of the energy, `time-bound` at nothing less than all, and what keeps a part of the
chunks sends that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from testbed.bench.lossy_leg import LossyLeg
from testbed.bench.tuning.rule import CANDIDATES
from testbed.experiment import Run
from testbed.training import phases
from testbed.training.phases import Observation
from testbed.training.run_context import RunContext
from testbed.transport import Leg
from testbed.transport.policies.order import ORDERS
from testbed.transport.policies.tolerance import BoundedEnergy, TolerancePolicy

_MOST_ENERGY_FIRST = "by-energy:floor=1.0,within_rounds=1"

# Of a configuration: what is no part of the training.
_NO_PART = {
    *("schema", "key", "experiment", "factors"),
    *("impairments", "limits", "controller", "datapath"),
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One arm, one point of the factors, one seed, one learning rate.

    Args:
        point: the factors' levels in words.
        config: of the run, but for its learning rate.
        hosts: the server and the workers.
    """

    point: str
    arm: str
    seed: int
    learning_rate: float
    config: dict[str, Any]
    hosts: list[str]

    @property
    def name(self) -> str:
        """For showing."""
        return f"{self.point}/{self.arm}/{self.learning_rate:g}/s{self.seed}"


def trials(runs: Sequence[Run]) -> Iterator[Trial]:
    """Every candidate for each run, evaluated on the validation part.

    Points of the sweep that train the same, such as with two impairments, are one.
    """
    points: dict[str, list[str]] = {}
    different: dict[str, tuple[Run, dict[str, Any]]] = {}
    for run in runs:
        config = {key: each for key, each in run.config().items() if key not in _NO_PART}
        config["training"] = {**config["training"], "evaluate_on": "validation"}
        del config["training"]["learning_rate"]
        text = json.dumps(config, sort_keys=True)
        points.setdefault(text, []).append(", ".join(map(str, run.factors.values())))
        different.setdefault(text, (run, config))
    for text, (run, config) in different.items():
        for rate in CANDIDATES:
            yield Trial(
                point="; ".join(points[text]),
                arm=run.arm,
                seed=run.seed,
                learning_rate=rate,
                config={**config, "training": {**config["training"], "learning_rate": rate}},
                hosts=run.experiment.topology.host_names(),
            )


def train(trial: Trial) -> dict[str, Any]:
    """Train; return the record, whose `value` is None where the model diverged."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    context = RunContext.without_network(trial.config, trial.hosts)
    curve = [(number + 1, value) for number, value in _rounds(context)]
    return {
        "point": trial.point,
        "arm": trial.arm,
        "learning_rate": trial.learning_rate,
        "seed": trial.seed,
        "rounds": context.rounds,
        "metric": context.metric,
        "value": curve[-1][1],
        "curve": curve,
    }


def _rounds(context: RunContext) -> Iterator[tuple[int, float | None]]:
    """Train all rounds; yield the number and the mean metric of those that are evaluated."""
    layout, protocol, workers = context.layout, context.protocol, context.workers
    learners = [context.learner(name) for name in workers]
    detector = context.detector()
    # Every host draws its orders from a seed of its own; the server sends to all in one order.
    *own, servers = np.random.SeedSequence([context.seed, 4]).generate_state(len(workers) + 1)
    filling = context.filling(Leg.GATHER)
    order = protocol.order if protocol.keep == 1 else _MOST_ENERGY_FIRST
    orders = [ORDERS.create(order, seed=int(seed)) for seed in own]
    gather = LossyLeg(
        layout, Leg.GATHER, filling, orders, energy_share=_energy_share(protocol.gather)
    )
    broadcasts = [
        LossyLeg(
            layout,
            Leg.BROADCAST,
            context.filling(Leg.BROADCAST),
            [ORDERS.create(order, seed=int(servers))],
            energy_share=_energy_share(protocol.broadcast),
        )
        for _ in workers
    ]
    gradients = [layout.new_buffer() for _ in workers]
    mean, update = layout.new_buffer(), layout.new_buffer()
    metric: float | None = None
    for number in range(context.rounds):
        for learner, gradient in zip(learners, gradients, strict=True):
            learner.gradient(layout.floats(gradient))
        critical = detector.critical
        filling.begin_round(critical, np.random.default_rng([context.seed, number]))
        tolerance = max(protocol.gather.tolerance(critical), 1 - protocol.keep)
        gather.pass_on(number, gradients, tolerance, mean)
        rate = context.learning_rate(number)
        critical = phases.observe(
            detector,
            Observation(
                round_number=number,
                gradient=layout.floats(mean),
                learning_rate=rate,
                next_learning_rate=context.next_epoch_learning_rate(number),
                accuracy=metric if context.metric == "accuracy" else None,
            ),
        )
        tolerance = max(protocol.broadcast.tolerance(critical), 1 - protocol.keep)
        for learner, broadcast in zip(learners, broadcasts, strict=True):
            broadcast.pass_on(number, [mean], tolerance, update)
            learner.apply(layout.floats(update), rate)
        metric = None
        if context.evaluates_after(number):
            scores = [learner.evaluate() or 0.0 for learner in learners]
            metric = float(np.mean(scores))
            metric = metric if math.isfinite(metric) else None
            yield number, metric


def _energy_share(policy: TolerancePolicy) -> float | None:
    """At which share of the energy its receivers stop, where that is what they look at."""
    return policy.share if isinstance(policy, BoundedEnergy) else None
