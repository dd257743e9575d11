"""One training of the factorial: a simulated run of a task with one arm."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import experiment
from testbed.bench import simulated

WORKERS = 3
_LINKS = 2  # on the way between a worker and the server


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learnt, and for how long.

    Args:
        model, dataset, batch_size, optimiser, learning_rate, momentum: as in an experiment's
            training section.
    """

    name: str
    model: str
    dataset: Any
    batch_size: int
    rounds: int
    optimiser: str
    learning_rate: float = 0.0
    momentum: float = 0.0

    def __str__(self) -> str:
        return f"{self.name}/{self.optimiser}-{self.learning_rate:g}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training.

    Args:
        loss: the share of the chunks that every receiver gives up, on both legs, in all rounds.
        link_loss: the probability that a chunk is lost on its way, below 1. How much is given up in
            all stays `loss`.
        order: name of the registry.
        gather, broadcast: the fillings of the legs.
    """

    task: Task
    loss: float
    link_loss: float
    order: str
    gather: str
    broadcast: str
    seed: int

    @property
    def name(self) -> str:
        """For selecting and showing."""
        link = f"link-{self.link_loss:g}"
        filling = f"{self.gather}+{self.broadcast}"
        return f"{self.task}/{link}/{self.order}/{filling}/{self.loss:g}/s{self.seed}"


def run(case: Case) -> dict[str, Any]:
    """Train one case; return its record, whose metric is None where the model diverged."""
    task = case.task
    learnt = simulated.train(_config(case))
    return {
        "task": str(task),
        "model": task.model,
        "metric": learnt.metric,
        "rounds": task.rounds,
        "workers": WORKERS,
        "loss": case.loss,
        "link_loss": case.link_loss,
        "order": case.order,
        "filling": f"{case.gather}+{case.broadcast}",
        "seed": case.seed,
        "final": learnt.curve[-1][1],
        "optimiser": task.optimiser,
        "learning_rate": task.learning_rate,
        "realised_loss": learnt.realised_loss,
        "divergence": learnt.divergence,
    }


def _config(case: Case) -> dict[str, Any]:
    task = case.task
    document = {
        "name": "factorial",
        "rounds": task.rounds,
        "seeds": [case.seed],
        "topology": {
            "name": "star",
            "workers": WORKERS,
            "rate_bps": 1_000_000_000,
            "queue_bytes": 4_000_000,  # more than a round's payloads
            "loss": 1 - (1 - case.link_loss) ** (1 / _LINKS),
        },
        "training": {
            "model": task.model,
            "dataset": task.dataset,
            "batch_size": task.batch_size,
            "optimiser": task.optimiser,
            "learning_rate": task.learning_rate,
            "momentum": task.momentum,
            "evaluate_every": task.rounds,
            "measure_every": task.rounds,
            "pace": {"kind": "paced", "compute_s": 0.001},
        },
        "phases": {"detector": "never-critical"},
        "arms": {
            "arm": {
                "protocol": "fixed-high",
                "tolerance": case.loss,
                "order": case.order,
                "filling": {"gather": case.gather, "broadcast": case.broadcast},
            }
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "factorial.yaml")
        path.write_text(json.dumps(document), encoding="utf-8")
        (found,) = experiment.load(str(path))
    return found.in_virtual_time().config()
