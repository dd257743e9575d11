"""Estimates how long runs take: from earlier runs of the kind, else from the configuration."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.experiment import Run, dimensionless
from testbed.shared import run_directory
from testbed.transport import PayloadLayout


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long one run takes: the mean of `earlier` runs, or a prediction where that is 0."""

    run_s: float
    earlier: int


def of_runs(results: Path, runs: Sequence[Run], say: Callable[[str], None]) -> list[Duration]:
    """Estimate each run. Earlier runs count that differ in nothing but the seed.

    Args:
        results: the folder that holds all experiments' results.
        say: is told, in words, of work that takes seconds.

    Raises:
        InputError: a user's model or data cannot be had.
    """
    earlier = _earlier(results / runs[0].experiment.name)
    unknown = [run for run in runs if _kind(run.config()) not in earlier]
    sizes = iter(layouts(unknown, say))
    found = []
    for run in runs:
        walls_s = earlier.get(_kind(run.config()))
        if walls_s:
            found.append(Duration(run_s=statistics.fmean(walls_s), earlier=len(walls_s)))
        else:
            found.append(Duration(run_s=dimensionless.run_s(run, next(sizes)), earlier=0))
    return found


def layouts(runs: Iterable[Run], say: Callable[[str], None]) -> list[PayloadLayout]:
    """The payload of each run; equal ones are worked out once."""
    known: dict[str, PayloadLayout] = {}
    found = []
    for run in runs:
        training = run.experiment.training
        text = json.dumps(
            [
                training.model_dump(mode="json", include={"model", "dataset", "pace"}),
                run.experiment.transport.chunk_bytes,
                str(run.folder),
            ]
        )
        if text not in known:
            say(f"reading the layers of {training.model}")
            known[text] = dimensionless.layout_of(run)
        found.append(known[text])
    return found


def total(found: Sequence[Duration]) -> str:
    """Say in one sentence how long all of them take."""
    total_s = sum(each.run_s for each in found)
    known = sum(each.earlier > 0 for each in found)
    source = f"{known} from earlier runs" if known else ""
    if known < len(found):
        source += (", " if source else "") + f"{len(found) - known} predicted"
    return f"{len(found)} runs to do, about {in_words(total_s)} ({source})"


def in_words(duration_s: float) -> str:
    """A duration with the two digits that an estimate deserves."""
    if duration_s < 90:
        return f"{duration_s:.0f} s"
    if duration_s < 2 * 3600:
        return f"{duration_s / 60:.0f} min"
    return f"{duration_s / 3600:.3g} h"


def _earlier(folder: Path) -> dict[str, list[float]]:
    """Kind of run -> wall times of those that were executed to their end, in seconds."""
    found: dict[str, list[float]] = {}
    for path in sorted(folder.glob("*/status.json")):
        try:
            status = run_directory.read_json(path)
            config = run_directory.read_json(path.with_name("config.json"))
        except (OSError, ValueError):
            continue  # the report tells of damaged directories
        if status.get("verdict") in ("ok", "invalid") and status.get("wall_s"):
            found.setdefault(_kind(config), []).append(float(status["wall_s"]))
    return found


def _kind(config: dict[str, Any]) -> str:
    """The configuration without the seed and what is drawn from it: equal for equal durations."""
    drawn = ("seed", "key", "impairments", "schema", "folder", "profile", "capture", "limits")
    return json.dumps({key: config[key] for key in config if key not in drawn}, sort_keys=True)
