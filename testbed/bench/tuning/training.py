"""Trains one arm of an experiment with one learning rate, in virtual time.

Learners, detector, schedule, tolerances, chunk orders and fillings are those of the run. Links are
equal and lose nothing, and impairments have no part: a receiver stops as soon as its tolerance
allows. How the path is measured, and by which stream, changes nothing that is learnt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.bench import simulated
from testbed.bench.tuning.rule import CANDIDATES
from testbed.experiment import Run
from testbed.transport import protocols

# Of a configuration: what is no part of the training.
_NO_PART = {"schema", "key", "experiment", "factors", "limits", "controller", "datapath"}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One arm, one point of the factors, one seed, one learning rate.

    Args:
        point: the factors' levels in words.
        config: of the simulated run.
    """

    point: str
    arm: str
    seed: int
    learning_rate: float
    config: dict[str, Any]

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
        config = _undisturbed(run)
        told = {key: each for key, each in config.items() if key not in _NO_PART}
        told["training"] = {**config["training"], "learning_rate": None}
        text = json.dumps(told, sort_keys=True)
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
            )


def _undisturbed(run: Run) -> dict[str, Any]:
    """The run on fast links that lose nothing, evaluated on the validation part."""
    config = run.config()
    training = {
        **config["training"],
        "evaluate_on": "validation",
        "pace": {"kind": "paced", "compute_s": 0.001},
        "measure_every": 0,
        "on_worker_loss": "fail",
    }
    topology = {
        "name": "star",
        "workers": run.experiment.topology.workers,
        "rate_bps": 1_000_000_000,
        "queue_bytes": 4_000_000,
    }
    return {
        **config,
        "training": training,
        "topology": topology,
        "protocol": _plain(config["protocol"]),
        "impairments": [],
    }


def _plain(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol without what costs time and changes nothing that is learnt."""
    if protocol["carrier"] == "udp":
        return {**protocol, "congestion_control": "fixed"}
    if "keep" in protocol:
        return {**protocol, "congestion_control": "cubic"}  # one that is simulated
    return dict(protocols.preset("none").describe())


def train(trial: Trial) -> dict[str, Any]:
    """Train; return the record, whose `value` is None where the model diverged."""
    learnt = simulated.train(trial.config)
    return {
        "point": trial.point,
        "arm": trial.arm,
        "learning_rate": trial.learning_rate,
        "seed": trial.seed,
        "rounds": trial.config["rounds"],
        "metric": learnt.metric,
        "value": learnt.curve[-1][1],
        "curve": learnt.curve,
    }
