"""Loads an experiment: every planned run is counted; logs are read when a frame is asked for.

A planned run is looked for as a finished directory, then as one left in progress (`.partial`), then
as its last attempt that was not ok (`.attemptN`). Earlier attempts, and runs that the plan does not
name, are listed in `Results.others` and enter no statistic.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data import (
    kept_measures,
    logs,
    programs,
    records,
    run_directories,
)
from analysis.data.choosing import Chosen
from analysis.data.evidence import MISSING, NOT_STARTED, VERDICTS, Evidence, Run, factor_text


@dataclass(frozen=True, kw_only=True)
class Results(Evidence):
    """An experiment's runs, and frames of the ok ones, each made when it is first asked for."""

    results_dir: Path
    problems: list[str]

    @cached_property
    def rounds(self) -> pl.DataFrame:
        """A row per round."""
        return self._log("rounds")

    @cached_property
    def transfers(self) -> pl.DataFrame:
        """A row per transfer and side. Reports do without it: it is by far the longest."""
        return self._log("transfers")

    @cached_property
    def training(self) -> pl.DataFrame:
        """A row per worker and round."""
        return self._log("training")

    @cached_property
    def effects(self) -> pl.DataFrame:
        """A row per round of which it was measured what loss did to the gradient."""
        return self._log("effects")

    @cached_property
    def impairments(self) -> pl.DataFrame:
        """A row per begin and end of an impairment."""
        return self._table("impairments")

    @cached_property
    def critical_path(self) -> pl.DataFrame:
        """A row per round: who was waited for, and the parts that add up to the round's time."""
        return self._table("critical_path")

    @cached_property
    def latencies(self) -> pl.DataFrame:
        """The columns of `rounds` that reports need."""
        return self._table("rounds")

    @cached_property
    def gathered_loss(self) -> pl.DataFrame:
        """Per round the share of the gathered chunks that receivers went without: `loss`."""
        return self._table("gathered_loss")

    @cached_property
    def evaluations(self) -> pl.DataFrame:
        """Per evaluation `accuracy` or `perplexity` at `elapsed_s`, means over the replicas."""
        return self._table("evaluations")

    @cached_property
    def deviations(self) -> pl.DataFrame:
        """`effects` as numbers, with the mean over the workers; see `learning.deviations`."""
        return self._table("deviations")

    @cached_property
    def layer_loss(self) -> pl.DataFrame:
        """Per run, leg and layer: `missing`, a share, the mean over transfers."""
        return self._table("layer_loss")

    @cached_property
    def host_cpu(self) -> pl.DataFrame:
        """Per run and host: processor time `cpu_s`."""
        return self._table("host_cpu")

    @cached_property
    def measured(self) -> kept_measures.Measured:
        """What is measured of the ok runs; kept tables are read where they are still true."""
        return kept_measures.of_runs(self.folder, self.ok_runs)

    def _log(self, name: str) -> pl.DataFrame:
        return logs.labelled(logs.read(self.ok_runs, name), self.ok_runs)

    def _table(self, name: str) -> pl.DataFrame:
        return logs.labelled(self.measured.tables[name], self.ok_runs)

    @property
    def folder(self) -> Path:
        """The experiment's own folder."""
        return self.results_dir / self.experiment


def load(
    results_dir: Path,
    experiment: str | None = None,
    chosen: Chosen | None = None,
    *,
    include_invalid: bool = False,
) -> Results:
    """Read an experiment's runs; by default those of the experiment that was planned last."""
    folder = run_directories.find_experiment(results_dir, experiment)
    problems: list[str] = []
    document, plan = (
        records.read_document(folder / name, problems, require_schema=True)
        for name in ("experiment.json", "plan.json")
    )
    whole = ("ok", "invalid") if include_invalid else ("ok",)
    runs, others = _runs(folder, plan, chosen, whole)
    if not runs:
        raise ValueError(f"{folder}: no runs found; valid: a folder that ./lab run has filled")
    published = document.get("published")
    return Results(
        experiment=folder.name,
        description=str(document.get("description") or ""),
        results_dir=folder.parent,
        commands=_commands(plan) or [f"./lab run {folder.name}"],
        arms=_arms(document, runs),
        published_ids=[str(each) for each in published] if isinstance(published, list) else None,
        levels=_levels(document),
        runs=runs,
        others=others,
        problems=problems,
        include_invalid=include_invalid,
    )


def _runs(
    folder: Path, plan: dict[str, Any], chosen: Chosen | None, whole: Sequence[str]
) -> tuple[list[Run], list[Run]]:
    """The planned runs in the plan's order, and everything else that was found."""
    found = run_directories.of_experiment(folder)
    entries = plan.get("runs")
    planned = [
        entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("key"), str)
    ]
    if not planned:  # no plan: what is there is all there is to count
        planned = [_entry(key, directories[-1].path) for key, directories in found.items()]
    if chosen is not None:
        planned = chosen.of(planned)
        found = {entry["key"]: found.get(entry["key"], []) for entry in planned}
    runs: list[Run] = []
    others: list[Run] = []
    for entry in planned:
        read = [_read(entry, each.path, each.note, whole) for each in found.pop(entry["key"], [])]
        missing = Run(**_identity(entry), verdict=MISSING, reason=_not_started(entry))
        runs.append(read.pop() if read else missing)
        others.extend(read)
    for key, left in found.items():
        others.extend(_read({"key": key}, each.path, each.note, whole) for each in left)
    planned_configs = [run.config for run in runs if run.config]
    return runs, [
        run if run.note else replace(run, note=_not_planned(run.config, planned_configs))
        for run in others
    ]


def _entry(key: str, directory: Path) -> dict[str, Any]:
    """What a plan would say of a run."""
    config = records.read_document(directory / "config.json", [])
    told: dict[str, Any] = {
        name: config[name] for name in ("arm", "seed", "factors") if name in config
    }
    return {"key": key, **told}


def _not_started(entry: dict[str, Any]) -> str:
    shard = entry.get("shard")
    return f"planned for shard {shard}, not started here" if shard else NOT_STARTED


def _commands(plan: dict[str, Any]) -> list[str]:
    commands = plan.get("commands") or [plan.get("command")]
    return [str(each) for each in commands if each] if isinstance(commands, list) else []


def _identity(entry: dict[str, Any]) -> dict[str, Any]:
    """What a run is, from its entry in the plan or its configuration."""
    seed = entry.get("seed")
    return {
        "key": entry["key"],
        "arm": str(entry.get("arm", "?")),
        "seed": seed if isinstance(seed, int) else -1,
        "factors": records.section(entry, "factors"),
    }


def _without_places(document: dict[str, Any]) -> dict[str, Any]:
    """A configuration or manifest with users' own files by name, without their folders."""
    places = records.section(document, "code")
    text = json.dumps(document) if places else ""
    for place in places:
        text = text.replace(json.dumps(place)[1:-1], Path(place).name)
    return dict(json.loads(text)) if places else document


def _read(entry: dict[str, Any], directory: Path, note: str, whole: Sequence[str]) -> Run:
    problems: list[str] = []
    status_problems: list[str] = []
    config = _without_places(records.read_document(directory / "config.json", problems))
    status = records.read_document(directory / "status.json", status_problems)
    verdict, reason = _verdict(status, status_problems, note)
    if verdict == "ok" and not config:
        verdict, reason = "failed", f"cannot be used: {problems[0] if problems else 'no config'}"
    if "this version reads" in reason:
        reason += f"; './lab run {directory.parent.name} --anew' runs it again"
    facts: dict[str, Any] = {}
    if verdict in whole:
        for name in ("manifest", "calibration"):
            found = records.read_document(directory / f"{name}.json", problems)
            facts[name] = _without_places(found)
        read = records.read_congestion_controls
        if programs.runs_programs(config):
            read = programs.congestion_controls
        facts["congestion_controls"] = read(directory)
    gates, wall_s = status.get("gates"), status.get("wall_s")
    return Run(
        **_identity(config | entry),
        verdict=verdict,
        reason=reason,
        directory=directory,
        note=note,
        began_at=status.get("began_at"),
        wall_s=float(wall_s) if isinstance(wall_s, int | float) else None,
        gates=[gate for gate in gates if isinstance(gate, dict)] if isinstance(gates, list) else [],
        config=config,
        **facts,
        problems=problems if verdict in whole else [],
    )


def _verdict(status: dict[str, Any], problems: list[str], note: str) -> tuple[str, str]:
    """A directory's verdict and reason; never ok unless it is complete and says so itself."""
    verdict, reason = status.get("verdict"), str(status.get("reason") or "")
    unfinished = note == run_directories.UNFINISHED
    if unfinished and (not status or verdict == "ok"):
        return "interrupted", note
    if verdict not in VERDICTS:
        said = problems[0] if problems else f"status.json has no valid verdict: {verdict!r}"
        return "failed", said
    return verdict, reason


def _arms(document: dict[str, Any], runs: list[Run]) -> list[str]:
    """The arms of the planned runs, in the experiment's order."""
    order = document.get("arms")
    names = [str(each) for each in order] if isinstance(order, list | dict) else []
    present = [run.arm for run in runs]
    return [name for name in dict.fromkeys([*names, *present]) if name in present]


def _levels(document: dict[str, Any]) -> dict[str, list[str | None]]:
    factors = document.get("factors")
    return {
        str(name): [factor_text(value) for value in values]
        for name, values in (factors.items() if isinstance(factors, dict) else ())
        if isinstance(values, list)
    }


# Of a configuration: what differs between runs that belong together.
_OF_ONE_RUN = ("key", "arm", "seed", "factors", "folder", "profile", "capture", "impairments")


def _not_planned(config: dict[str, Any], planned: Sequence[dict[str, Any]]) -> str:
    """Where a run's configuration first differs from a planned one's of the same arm, in words."""
    arm = config.get("arm")
    alike = [each for each in planned if each.get("arm") == arm]
    why = _first_difference(config, alike[0]) if alike else f"it has no run of {arm}"
    return f"not in the plan{': ' if why else ''}{why}"


def _first_difference(there: Any, here: Any, path: str = "") -> str:
    """Where a run's configuration first differs from one of the plan's, in words."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = [name for name in there if name in here and (path or name not in _OF_ONE_RUN)]
        found = (_first_difference(there[name], here[name], f"{path}{name}.") for name in names)
        return next(filter(None, found), "")
    if there == here:
        return ""
    name = path.rstrip(".")
    if name.startswith("code."):
        return f"{Path(name.removeprefix('code.')).name} has changed since"
    if isinstance(there, dict | list) or isinstance(here, dict | list):
        return f"another {name}"
    return f"{name} {there} instead of {here}"
