"""What numbers rest on: runs, their verdicts, their points in a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.data import programs

VERDICTS = ("ok", "failed", "invalid", "unsupported", "interrupted")
MISSING = "missing"  # planned, but nothing of it is on disk: not started yet
INVALID_INCLUDED = "INVALID RUNS INCLUDED"  # the mark of numbers that are of such runs, too
NOT_STARTED = "planned, not started"  # its reason, of a sweep that is not divided
FACTOR_PREFIX = "factor."  # of the columns that hold a run's point in the sweep


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run and what its directory says about it.

    Attributes:
        key: the name of its directory.
        arm, seed, factors: which run it is; `factors` is its point in the sweep.
        verdict: how it ended; `missing` where nothing of it is on disk.
        reason: why, where the verdict is not ok.
        directory: where its files lie; None where it is missing.
        note: why this is not the plan's own finished directory; empty where it is.
        began_at, wall_s: the time of day at its begin, and how many seconds it took.
        gates: the rows of `status.json`.
        config, manifest, calibration: the documents of those names.
        congestion_controls: those that the endpoints of an ok run used, read back by them.
        problems: what was wrong with its files; more are added as its logs are read.
    """

    key: str
    arm: str
    seed: int
    factors: dict[str, Any]
    verdict: str
    reason: str = ""
    directory: Path | None = None
    note: str = ""
    began_at: str | None = None
    wall_s: float | None = None
    gates: list[dict[str, Any]] = field(default_factory=list, repr=False)
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    manifest: dict[str, Any] = field(default_factory=dict, repr=False)
    calibration: dict[str, Any] = field(default_factory=dict, repr=False)
    congestion_controls: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What all numbers of an experiment rest on: its runs, and `per_run`'s row for each ok one."""

    experiment: str
    description: str
    commands: list[str]
    arms: list[str]
    published_ids: list[str] | None
    levels: dict[str, list[str | None]]
    runs: list[Run]
    others: list[Run]
    include_invalid: bool = False

    @property
    def left_out(self) -> list[Run]:
        """The ok runs on disk that no table has; the note of each says why."""
        return [run for run in self.others if run.verdict == "ok"]

    @property
    def ok_runs(self) -> list[Run]:
        """The runs that enter statistics: the ok ones, unless `include_invalid` says more."""
        return [run for run in self.runs if self.counts(run)]

    def counts(self, run: Run) -> bool:
        """Whether a planned run enters statistics."""
        invalid = self.include_invalid and run.verdict == "invalid" and bool(run.config)
        return run.verdict == "ok" or invalid

    @property
    def invalid_included(self) -> int:
        """How many invalid runs enter statistics."""
        return sum(run.verdict == "invalid" for run in self.ok_runs)

    @property
    def runs_programs(self) -> bool:
        """Whether the workload was programs, and not the built-in training."""
        return any(programs.runs_programs(run.config) for run in self.runs)

    @property
    def factor_columns(self) -> list[str]:
        """The columns that hold a run's point in the sweep."""
        return [FACTOR_PREFIX + name for name in factor_names(self.ok_runs)]

    def point_order(self, run: Run) -> tuple[int, ...]:
        """A sort key: runs are executed in an order of their own, tables follow the experiment."""
        orders = [
            (self.levels.get(name) or [], factor_text(value)) for name, value in run.factors.items()
        ]
        return tuple(
            order.index(value) if value in order else len(order) for order, value in orders
        )

    def congestion_controls(self, arm: str) -> list[str]:
        """The congestion controls that the ok runs of an arm used, read back by their endpoints."""
        runs = [run for run in self.ok_runs if run.arm == arm]
        return sorted({each for run in runs for each in run.congestion_controls})

    def verdicts(self) -> dict[str, int]:
        """How many planned runs have each verdict, or are missing."""
        found = [run.verdict for run in self.runs]
        return {verdict: found.count(verdict) for verdict in (*VERDICTS, MISSING)}


def factor_names(runs: Sequence[Run]) -> list[str]:
    """The factors that some runs have, by name."""
    return sorted({name for run in runs for name in run.factors})


def factor_text(value: Any) -> str | None:
    """A factor's value as it stands in the factor columns; a bundle of settings by its label."""
    if isinstance(value, dict) and "label" in value:
        value = value["label"]
    return None if value is None else str(value)


def impairment_kinds(impairments: object) -> dict[str, str]:
    """The kind of each configured impairment by the name that the logs use."""
    entries: Iterable[object] = impairments if isinstance(impairments, list) else []
    return {
        str(entry.get("name") or f"{entry.get('kind')}-{entry.get('host')}"): kind_name(
            str(entry.get("kind"))
        )
        for entry in entries
        if isinstance(entry, dict)
    }


def kind_name(kind: str) -> str:
    """A kind of impairment without the place of a user's own code: `/a/mine.py:Flap` is `Flap`."""
    place, _, name = kind.rpartition(":")
    return name if place else Path(kind).stem
