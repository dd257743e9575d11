"""Estimates how long runs take, and how much disk: from earlier runs of the kind, else predicted.

A prediction adds up the lab, the transfers, and the computing, which is measured here for a moment.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.experiment import Run, computing, dimensionless, disk_space
from testbed.shared import run_directory, sizes
from testbed.transport import PayloadLayout
from testbed.transport.core import wire
from testbed.transport.policies.repair import REPAIRS, Passes

# Of virtual time, measured on two cores (docs/how-to/simulate.md, kept simulated results): for each
# run, worker, transfer, datagram, and wake-up of what answers batch after batch.
_RUN_S, _WORKER_S, _TRANSFER_S, _DATAGRAM_S, _WAKE_S = 0.3, 0.005, 0.004, 1e-6, 0.0003
_WAKES_HZ = 500


@dataclass(frozen=True, kw_only=True)
class Duration:
    """What one run takes: the mean of `earlier` runs, or a prediction where that is 0.

    Attributes:
        run_s: None where nobody can tell: programs without time limits.
        disk_bytes: of its directory, without captures.
        computing: whether the time for computing is in it.
    """

    run_s: float | None
    disk_bytes: float
    earlier: int
    computing: bool = True


def of_runs(results: Path, runs: Sequence[Run], say: Callable[[str], None]) -> list[Duration]:
    """Estimate each run. Earlier runs count that differ in nothing but the seed.

    Args:
        results: the folder that holds all experiments' results.
        say: is told, in words, of work that takes seconds.

    Raises:
        InputError: a user's model or data cannot be had.
    """
    earlier = _earlier(results / runs[0].experiment.name)
    unknown = [run for run in runs if run.experiment.trains and _kind(run.config()) not in earlier]
    sizes = layouts(unknown, say)
    predictions = iter(zip(sizes, computing.of_runs(unknown, say), strict=True))
    found = []
    for run in runs:
        known = earlier.get(_kind(run.config()))
        if known:
            walls_s, bytes_each = zip(*known, strict=True)
            found.append(
                Duration(
                    run_s=statistics.fmean(walls_s),
                    disk_bytes=statistics.fmean(bytes_each),
                    earlier=len(known),
                )
            )
        elif run.experiment.trains:
            found.append(_predicted(run, *next(predictions)))
        else:
            found.append(_limited(run))
    return found


def _predicted(run: Run, layout: PayloadLayout, computes: computing.Computing | None) -> Duration:
    if run.simulated:
        return _simulated(run, layout, computes)
    idle_s = dimensionless.run_s(run, layout)
    run_s = idle_s + (computes or computing.NOTHING).of_run_s(run)
    given_s = run.experiment.rounds * getattr(run.experiment.training.pace, "compute_s", 0.0)
    disk_bytes = disk_space.predicted_bytes(
        run,
        payload_bytes=4 * layout.element_count,
        run_s=run_s - dimensionless.LAB_S,
        wire_s=idle_s - dimensionless.LAB_S - given_s,
    )
    return Duration(run_s=run_s, disk_bytes=disk_bytes, earlier=0, computing=computes is not None)


def _simulated(run: Run, layout: PayloadLayout, computes: computing.Computing | None) -> Duration:
    """What one processor needs to simulate a run; learning, it computes for one after another."""
    workers, rounds = run.experiment.topology.workers, run.experiment.rounds
    datagram_bytes = wire.wire_bytes(1, run.experiment.transport.chunk_bytes)
    datagrams = dimensionless.numbers(run, layout).round_bytes / datagram_bytes
    round_s = 2 * workers * _TRANSFER_S + datagrams * _DATAGRAM_S
    repair = None if run.protocol.carrier == "tcp" else REPAIRS.create(run.protocol.repair)
    if not isinstance(repair, Passes):
        calm_s = dimensionless.communication_s(run, layout)
        round_s += _WAKE_S * min(datagrams, workers * calm_s * _WAKES_HZ)
    run_s = _RUN_S + workers * _WORKER_S + rounds * round_s
    run_s += (computes or computing.NOTHING).one_by_one_s(run)
    payload_bytes = 4 * layout.element_count
    disk_bytes = disk_space.predicted_bytes(run, payload_bytes=payload_bytes, run_s=0, wire_s=0)
    return Duration(run_s=run_s, disk_bytes=disk_bytes, earlier=0, computing=computes is not None)


def _limited(run: Run) -> Duration:
    """What programs take at most, by their time limits."""
    limits_s = [each.time_limit_s for each in run.programs.programs if not each.service]
    run_s = None if None in limits_s else max(filter(None, limits_s))
    return Duration(
        run_s=None if run_s is None else run_s + dimensionless.LAB_S,
        disk_bytes=disk_space.samples_bytes(run, run_s=run_s or 0.0),
        earlier=0,
    )


def training_s(run: Run) -> float | None:
    """About how long the workload of a run goes on, computing left out; None: nobody can tell."""
    if not run.experiment.trains:
        run_s = _limited(run).run_s
        return None if run_s is None else run_s - dimensionless.LAB_S
    (layout,) = layouts([run], lambda _: None)
    return dimensionless.run_s(run, layout) - dimensionless.LAB_S


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


def total(found: Sequence[Duration], *, at_once: int = 1) -> str:
    """Say in one sentence how long all of them take, so many at once, and how much disk."""
    known_s = [each.run_s for each in found if each.run_s is not None]
    runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
    if not known_s:
        return f"{runs} to do; how long is unknown: no time_limit_s is given"
    told = in_words(max(sum(known_s) / at_once, *known_s))
    if len(known_s) < len(found):
        told += f" for {len(known_s)} of them (unknown where no time_limit_s is given)"
    disk = sizes.in_words(sum(each.disk_bytes for each in found if each.run_s is not None))
    earlier = sum(each.earlier > 0 for each in found)
    source = f"{earlier} from earlier runs" if earlier else ""
    if earlier < len(known_s):
        source += (", " if source else "") + f"{len(known_s) - earlier} predicted"
    return f"{runs} to do, about {told} and {disk} on disk ({source})"


def in_words(duration_s: float | None) -> str:
    """A duration with the two digits that an estimate deserves."""
    if duration_s is None:
        return "unknown"
    if duration_s < 90:
        return f"{duration_s:.0f} s"
    if duration_s < 2 * 3600:
        return f"{duration_s / 60:.0f} min"
    return f"{duration_s / 3600:.3g} h"


def _earlier(folder: Path) -> dict[str, list[tuple[float, int]]]:
    """Kind of run -> wall time in seconds and size in bytes of those that ran to their end."""
    found: dict[str, list[tuple[float, int]]] = {}
    for path in sorted(folder.glob("*/status.json")):
        try:
            status = run_directory.read_json(path)
            config = run_directory.read_json(path.with_name("config.json"))
        except (OSError, ValueError):
            continue  # the report tells of damaged directories
        if status.get("verdict") in ("ok", "invalid") and status.get("wall_s"):
            size_bytes = disk_space.whole_bytes(path.parent)
            found.setdefault(_kind(config), []).append((float(status["wall_s"]), size_bytes))
    return found


def _kind(config: dict[str, Any]) -> str:
    """The configuration without the seed and what is drawn from it: equal for equal durations."""
    drawn = ("seed", "key", "impairments", "schema", "folder", "profile", "capture", "limits")
    return json.dumps({key: config[key] for key in config if key not in drawn}, sort_keys=True)
