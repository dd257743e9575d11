"""Loads an experiment: every planned run is counted; logs are read when a frame is asked for.

Of a planned run counts the finished directory (`KEY/`), else one in progress or left behind
(`KEY.partial/`), else the last attempt that was not ok (`KEY.attemptN/`). Earlier attempts, and
runs that the plan does not name, are listed in `Results.others` and enter no statistic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data import logs, programs
from analysis.data.evidence import (
    MISSING,
    NOT_STARTED,
    VERDICTS,
    Evidence,
    Run,
    factor_text,
    runs_programs,
    section,
)
from analysis.data.measure import measure

REPORT = "report"  # the folder of an experiment's report, and of the index of all
CONFIG = "config.json"  # of a run
_KEPT = "provenance.json"  # of results that were kept
UNFINISHED = "unfinished: in progress, or left behind"
_SUFFIX = re.compile(r"^(?P<key>.+)\.(?:(?P<partial>partial)|attempt(?P<attempt>\d+))$")


@dataclass(frozen=True, kw_only=True)
class Results(Evidence):
    """An experiment's runs, and frames of the ok ones, each made when it is first asked for."""

    results_dir: Path
    problems: list[str]

    def frame(self, name: str) -> pl.DataFrame:
        """A log (`rounds`, `transfers`, `training`, `effects`) or a table of `measure`."""
        if name not in self._frames:
            is_log = name in ("rounds", "transfers", "training", "effects")
            frame = logs.read(self.ok_runs, name) if is_log else self._tables[name]
            if name == "metrics" and self.runs_programs:
                frame = programs.with_metrics(frame, self.ok_runs)
            self._frames[name] = logs.labelled(frame, self.ok_runs)
        return self._frames[name]

    def measured(self) -> pl.DataFrame:
        return self.frame("metrics")

    @cached_property
    def _frames(self) -> dict[str, pl.DataFrame]:
        return {}

    @cached_property
    def _tables(self) -> dict[str, pl.DataFrame]:
        return measure(self.ok_runs)

    @property
    def folder(self) -> Path:
        return self.results_dir / self.experiment


def _frame(name: str, meaning: str) -> cached_property[pl.DataFrame]:
    def read(frames: Frames) -> pl.DataFrame:
        # Files of comma-separated values and table programs have no lists.
        return frames.evidence.frame(name).with_columns(pl.col(pl.List(pl.String)).list.join(", "))

    read.__doc__ = meaning
    return cached_property(read)


class Frames:
    """An experiment's results as polars frames, each read when it is first asked for.

    All but `runs` hold the ok runs only. docs/reference/frames.md describes their columns, of which
    none is nested, so `frame.write_csv(...)` works.

    Attributes:
        evidence: the runs behind the frames, with their documents: manifest, calibration, gates.
        experiment: the experiment's name.
        arms: those of the planned runs, in the experiment's order.
        verdicts: a function that counts the planned runs by verdict, `missing` included.
    """

    def __init__(self, evidence: Results) -> None:
        self.evidence, self.verdicts = evidence, evidence.verdicts
        self.experiment, self.arms = evidence.experiment, evidence.arms

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {name}" for name, n in self.verdicts().items() if n)
        return f"<results of {self.experiment}: {counts}>"

    @cached_property
    def runs(self) -> pl.DataFrame:
        """A row per planned run, whatever its verdict."""
        runs = self.evidence.runs
        rows = [
            (run.verdict, run.reason, run.began_at, run.wall_s, str(run.directory or "") or None)
            for run in runs
        ]
        schema = dict(logs.FRAMES["runs"].schema)
        frame = pl.DataFrame(rows, schema=schema, orient="row", strict=False)
        return logs.labels(runs).hstack(frame)

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """A row per ok run, and a column per metric of docs/reference/summary-json.md."""
        return self.evidence.per_run()

    rounds = _frame("rounds", "A row per round.")
    transfers = _frame("transfers", "A row per transfer and side.")
    training = _frame("training", "A row per worker and round.")
    impairments = _frame("impairments", "A row per begin and end of an impairment.")
    effects = _frame("effects", "A row per round of which it was measured what loss did.")

    def samples(self, name: str) -> pl.LazyFrame:
        """The samples `queues`, `flows` or `processes` of all ok runs that have some.

        Nothing is read before `collect`, and then only the columns and rows that are asked for.

        Raises:
            ValueError: there are no such samples, or a file of them is half-written or of another
                version: one line.
        """
        if name not in logs.SAMPLES:
            raise ValueError(f"samples {name!r}; valid: {', '.join(logs.SAMPLES)}")
        runs = self.evidence.ok_runs
        labels = logs.labels(runs)
        parts = [pl.LazyFrame(schema={**labels.schema, **logs.FRAMES[name].schema})]
        for number, run in enumerate(runs):
            assert run.directory is not None
            if (frame := logs.scan_samples(run.directory, name)) is not None:
                parts.append(labels[number].lazy().join(frame, how="cross"))
        return pl.concat(parts)


def load(results_dir: Path, experiment: str | None = None) -> Results:
    folder = _find_experiment(results_dir, experiment)
    problems: list[str] = []
    document, plan = (
        logs.read_document(folder / name, problems, needs_schema=True)
        for name in ("experiment.json", "plan.json")
    )
    planned = plan.get("runs") or []
    if not _are_mappings(planned):
        problems.append("plan.json: its runs are no list of mappings")
        planned = []
    runs, others = _runs(folder, planned)
    if not runs:
        raise ValueError(f"{folder}: no runs found; valid: a folder that ./lab run has filled")
    commands = list(filter(None, plan.get("commands") or [plan.get("command")]))
    present, factors = [run.arm for run in runs], document.get("factors") or {}
    arms = dict.fromkeys([*document.get("arms", []), *present])  # in the experiment's order
    return Results(
        experiment=folder.name,
        description=str(document.get("description") or ""),
        results_dir=folder.parent,
        commands=commands or [f"./lab run {folder.name}"],
        arms=[name for name in arms if name in present],
        published_ids=document.get("published"),
        compare=_pairs_of(document.get("compare")),
        levels={name: list(map(factor_text, values)) for name, values in factors.items()},
        runs=runs,
        others=others,
        problems=problems,
    )


def _pairs_of(stored: Any) -> list[list[str]]:
    """A file names pairs of arms; what is no pair of texts is left out."""
    pairs = stored if isinstance(stored, list) else []
    is_text = [isinstance(pair, list) and [*map(type, pair)] == [str, str] for pair in pairs]
    return [pair for pair, fits in zip(pairs, is_text, strict=True) if fits]


def _runs(folder: Path, planned: list[dict[str, Any]]) -> tuple[list[Run], list[Run]]:
    """The planned runs in the plan's order, and everything else that was found."""
    directories_of = _directories_of_runs(folder)
    if not planned:  # no plan: what is there is all there is to count
        for key, directories in directories_of.items():
            config = logs.read_document(directories[-1].path / CONFIG, [])
            names = [name for name in ("arm", "seed", "factors") if name in config]
            planned.append({"key": key, **{name: config[name] for name in names}})
    runs: list[Run] = []
    others: list[Run] = []
    for entry in planned:
        directories = directories_of.pop(entry["key"], [])
        attempts = [_read(entry, directory) for directory in directories]
        missing = Run(**_identity(entry), verdict=MISSING, reason=NOT_STARTED)
        runs.append(attempts.pop() if attempts else missing)
        others.extend(attempts)
    for key, directories in directories_of.items():
        others.extend(_read({"key": key}, directory) for directory in directories)
    configs = [run.config for run in runs if run.config]
    return runs, [
        run if run.note else replace(run, note=_not_planned(run.config, configs)) for run in others
    ]


def _identity(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "key": entry["key"],
        "arm": str(entry.get("arm", "?")),
        "seed": entry.get("seed", -1),
        "factors": section(entry, "factors"),
    }


def _without_places(document: dict[str, Any]) -> dict[str, Any]:
    """A configuration or manifest with users' own files by name, without their folders."""
    places = section(document, "code")
    text = json.dumps(document) if places else ""
    for place in places:
        text = text.replace(json.dumps(place)[1:-1], Path(place).name)
    return dict(json.loads(text)) if places else document


def _read(entry: dict[str, Any], attempt: _Directory) -> Run:
    directory, problems, status_problems = attempt.path, list[str](), list[str]()
    config = _without_places(logs.read_document(directory / CONFIG, problems))
    status = logs.read_document(directory / "status.json", status_problems)
    if not _are_mappings(status.get("gates") or []):
        status_problems.append("status.json: its gates are no list of mappings")
        status = {}
    verdict, reason = _verdict(status, status_problems, attempt.note)
    if verdict == "ok" and not config:
        verdict, reason = "failed", f"cannot be used: {problems[0] if problems else 'no config'}"
    if "this version reads" in reason:
        reason += f"; './lab run {directory.parent.name} --anew' runs it again"
    facts: dict[str, Any] = {}
    if verdict == "ok":
        for name in ("manifest", "calibration"):
            facts[name] = _without_places(logs.read_document(directory / f"{name}.json", problems))
        reader = programs if runs_programs(config) else logs
        facts["congestion_controls"] = reader.congestion_controls(directory)
    return Run(
        **_identity(config | entry),
        verdict=verdict,
        reason=reason,
        directory=directory,
        note=attempt.note,
        began_at=status.get("began_at"),
        wall_s=status.get("wall_s"),
        gates=status.get("gates") or [],
        config=config,
        **facts,
        problems=problems if verdict == "ok" else [],
    )


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _verdict(status: dict[str, Any], problems: list[str], note: str) -> tuple[str, str]:
    """A directory's verdict and reason; never ok unless it is complete and says so itself."""
    verdict = status.get("verdict")
    if note == UNFINISHED and (not status or verdict == "ok"):
        return "interrupted", note
    if verdict not in VERDICTS:
        return "failed", (*problems, f"status.json has no valid verdict: {verdict!r}")[0]
    return verdict, str(status.get("reason") or "")


# Of a configuration: what differs between runs that belong together.
_OF_ONE_RUN = ("key", "arm", "seed", "factors", "folder", "profile", "capture", "impairments")


def _not_planned(config: dict[str, Any], planned: Sequence[dict[str, Any]]) -> str:
    """Say that a run is not in the plan, and where it differs from a planned run of its arm."""
    alike = next((other for other in planned if other.get("arm") == config.get("arm")), {})
    differing = [
        name
        for name in config
        if name in alike and name not in _OF_ONE_RUN and config[name] != alike[name]
    ]
    return f"not in the plan{': other ' if differing else ''}{', '.join(differing)}"


@dataclass(frozen=True, order=True)
class _Directory:
    """A directory of a run; of several for one run, the greatest counts."""

    rank: tuple[int, int]
    path: Path
    note: str  # empty for a finished directory


def _find_experiment(results_dir: Path, experiment: str | None = None) -> Path:
    """The folder of an experiment below `results_dir`; the one planned last if none is named."""
    if not results_dir.is_dir():
        raise ValueError(
            f"{results_dir}: no such folder; valid: one given to ./lab run, or of kept results"
        )
    if experiment is None and (results_dir / CONFIG).is_file():
        return results_dir
    plans = list(results_dir.glob("*/plan.json"))
    has_runs = any(results_dir.glob(f"*/{CONFIG}"))  # without a plan: repetitions
    if (results_dir / "plan.json").is_file() or (has_runs and not plans):
        if experiment not in (None, results_dir.resolve().name):
            raise ValueError(f"{results_dir}: holds no runs of {experiment!r}")
        return results_dir.resolve() if not results_dir.name.strip(".") else results_dir
    folders = {path.parent for path in plans}
    folders = folders or {path.parents[1] for path in results_dir.glob(f"*/*/{CONFIG}")}
    if not folders:
        is_kept = (results_dir / _KEPT).is_file()
        if is_kept or any(results_dir.glob(f"*/{_KEPT}")):
            kept = results_dir if is_kept else results_dir / (experiment or "NAME")
            raise ValueError(
                f"{results_dir}: holds kept results, not run directories; valid: the folder given "
                f"to ./lab run, or polars.read_csv of {kept / 'rows.csv'} "
                "(docs/reference/kept-results.md)"
            )
        raise ValueError(
            f"{results_dir}: no runs found; valid: a folder with EXPERIMENT/plan.json in it, "
            "as ./lab run writes it"
        )
    if experiment is None:
        planned_at = {path.parent: path.stat().st_mtime for path in plans}
        return max(sorted(folders), key=lambda folder: planned_at.get(folder, 0.0))
    names = sorted(folder.name for folder in folders)
    if experiment not in names:
        valid = ", ".join(names)
        raise ValueError(f"{results_dir}: no experiment {experiment!r} here; valid: {valid}")
    return results_dir / experiment


def _directories_of_runs(folder: Path) -> dict[str, list[_Directory]]:
    if (folder / CONFIG).is_file():
        return {folder.name: [_Directory((2, 0), folder, "")]}
    by_key: dict[str, list[_Directory]] = {}
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.is_symlink() or path.name.startswith("."):
            continue
        if path.name == REPORT:
            continue
        key, directory = path.name, _Directory((2, 0), path, "")
        if match := _SUFFIX.match(path.name):
            key, directory = match["key"], _Directory((1, 0), path, UNFINISHED)
            if attempt := match["attempt"]:
                directory = _Directory((0, int(attempt)), path, f"attempt {int(attempt)}")
        by_key.setdefault(key, []).append(directory)
    return {key: sorted(directories) for key, directories in by_key.items()}
