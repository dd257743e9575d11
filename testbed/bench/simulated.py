"""A training in virtual time whose files are gone afterwards: the studies' engine."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.run import simulating
from testbed.shared import jsonl
from testbed.shared.run_directory import RunDirectory, read_json

_METRICS = ("accuracy", "perplexity")


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """What a training came to.

    Attributes:
        metric: accuracy or perplexity.
        curve: (rounds done, mean over the replicas) of each evaluation; None where one diverged.
        realised_loss: leg -> share of the chunks that its receivers went without; kernel TCP's
            receivers do not say.
        divergence: (rounds done, how far the replicas are apart), where that was measured.
    """

    metric: str
    curve: list[tuple[int, float | None]]
    realised_loss: dict[str, float]
    divergence: list[tuple[int, float | None]]


def train(config: Mapping[str, Any]) -> Learnt:
    """Simulate the run of a configuration.

    Raises:
        RuntimeError: it failed, with the reason.
    """
    with tempfile.TemporaryDirectory(prefix="lab-bench-") as folder:
        place = RunDirectory(Path(folder, config["key"]))
        simulating.carry_out(place, config, lambda progress: None)
        status = read_json(place.path / "status.json")
        if status["verdict"] != "ok":
            raise RuntimeError(f"{config['key']}: {status['verdict']}: {status['reason']}")
        return _read(place.path / "events", config)


def _read(events: Path, config: Mapping[str, Any]) -> Learnt:
    of_workers = [jsonl.read(path) for path in sorted(events.glob("training-*.jsonl"))]
    metric = next(name for name in _METRICS if name in of_workers[0][0])
    every = config["training"]["evaluate_every"]
    return Learnt(
        metric=metric,
        curve=[
            (number + 1, _mean([lines[number][metric] for lines in of_workers]))
            for number in range(config["rounds"])
            if number % every == 0 or number == config["rounds"] - 1
        ],
        realised_loss={leg: _lost(events, leg) for leg in ("gather", "broadcast")},
        divergence=[
            (each["round"] + 1, each["divergence"])
            for path in events.glob("effects.jsonl")
            for each in jsonl.read(path)
        ],
    )


def _lost(events: Path, leg: str) -> float:
    """The share of what receivers report; 0 where none does."""
    received = [
        each
        for path in events.glob("transfers-*.jsonl")
        for each in jsonl.read(path)
        if each["role"] == "receiver" and each["leg"] == leg
        if each["chunks_received"] is not None
    ]
    missing = sum(each["chunk_count"] - each["chunks_received"] for each in received)
    return float(missing / max(1, sum(each["chunk_count"] for each in received)))


def _mean(scores: list[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if len(known) == len(scores) else None
