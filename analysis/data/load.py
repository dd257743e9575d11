"""Loads an experiment: every planned run is counted, and the logs of the ok runs are read.

A planned run is looked for as a finished directory, then as one left in progress (`.partial`), then
as its last attempt that was not ok (`.attemptN`). Earlier attempts, and runs that the plan does not
name, are listed in `Results.others` and enter no statistic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data import critical_path, not_planned, programs, records, run_directories
from analysis.data.evidence import (
    FACTOR_PREFIX,
    MISSING,
    NOT_STARTED,
    VERDICTS,
    Evidence,
    Run,
    factor_names,
    factor_text,
    kind_name,
)

# What phase detectors with these `phases` sections say after each round, by the gradients' norms.
Detect = Callable[[Sequence[Mapping[str, Any]], Sequence[float]], list[list[bool]]]

_IMPAIRMENTS = "impairments.jsonl"
_EFFECTS = "effects.jsonl"
_ROUNDS = "rounds.jsonl"


@dataclass(frozen=True, kw_only=True)
class Results(Evidence):
    """An experiment's runs. The frames hold the ok runs only, one row per logged record.

    Every frame starts with `run_key`, `arm`, `seed` and one `factor.NAME` column per factor.

    Attributes:
        results_dir: the folder that holds the experiment's own.
        problems: what was wrong with the experiment's own files.
        rounds, transfers, training, impairments, effects: the frames of the logged records.
        layer_loss: per run, leg and layer: `missing`, a share, the mean over transfers.
        critical_path: per round who was waited for in each step, and for how long.
        detect: for `detector_replay`; None: nothing is replayed.
    """

    results_dir: Path
    problems: list[str]
    rounds: pl.DataFrame
    transfers: pl.DataFrame
    training: pl.DataFrame
    impairments: pl.DataFrame
    effects: pl.DataFrame
    layer_loss: pl.DataFrame
    detect: Detect | None = None

    @cached_property
    def critical_path(self) -> pl.DataFrame:
        """A row per round: who was waited for, and the parts that add up to the round's time."""
        return critical_path.of_rounds(
            rounds=self.rounds,
            transfers=self.transfers,
            training=self.training,
            impairments=self.impairments,
            labels=list(_labels(factor_names(self.ok_runs))),
        )

    @property
    def folder(self) -> Path:
        """The experiment's own folder."""
        return self.results_dir / self.experiment


def load(results_dir: Path, experiment: str | None = None, detect: Detect | None = None) -> Results:
    """Read an experiment's runs; by default those of the experiment that was planned last.

    Raises:
        ValueError: no such folder, no runs in it, an unknown experiment, another schema, or a
            value in a log that is not of its type.
    """
    folder = run_directories.find_experiment(results_dir, experiment)
    problems: list[str] = []
    document, plan = (
        records.read_document(folder / name, problems, require_schema=True)
        for name in ("experiment.json", "plan.json")
    )
    runs, others = _runs(folder, plan)
    if not runs:
        raise ValueError(f"{folder}: no runs found; valid: a folder that ./lab run has filled")
    ok_runs = [run for run in runs if run.verdict == "ok"]
    rounds = _frame(ok_runs, _ROUNDS, records.ROUNDS)
    _remark_on_missing_rounds(ok_runs, rounds)
    published = document.get("published")
    layers: list[pl.DataFrame] = []
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
        rounds=rounds,
        transfers=_frame(ok_runs, "transfers-*.jsonl", records.TENSOR_LOSS, layers),
        training=_frame(ok_runs, "training-*.jsonl", records.TRAINING),
        impairments=_frame(ok_runs, _IMPAIRMENTS, records.IMPAIRMENTS).with_columns(
            pl.col("kind").map_elements(kind_name, return_dtype=pl.String)
        ),
        effects=_frame(ok_runs, _EFFECTS, records.EFFECTS),
        layer_loss=records.mean_layer_loss(layers),
        detect=detect,
    )


def _runs(folder: Path, plan: dict[str, Any]) -> tuple[list[Run], list[Run]]:
    """The planned runs in the plan's order, and everything else that was found."""
    found = run_directories.of_experiment(folder)
    entries = plan.get("runs")
    planned = [
        entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("key"), str)
    ]
    if not planned:  # no plan: what is there is all there is to count
        planned = [{"key": key} for key in found]
    runs: list[Run] = []
    others: list[Run] = []
    for entry in planned:
        read = [_read(entry, each.path, each.note) for each in found.pop(entry["key"], [])]
        missing = Run(**_identity(entry), verdict=MISSING, reason=_not_started(entry))
        runs.append(read.pop() if read else missing)
        others.extend(read)
    for key, left in found.items():
        others.extend(_read({"key": key}, each.path, each.note) for each in left)
    planned_configs = [run.config for run in runs if run.config]
    return runs, [
        run if run.note else replace(run, note=not_planned.reason(run.config, planned_configs))
        for run in others
    ]


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


def _without_places(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with users' own files by name: their folders are of no interest here."""
    places = records.section(config, "code")
    text = json.dumps(config) if places else ""
    for place in places:
        text = text.replace(json.dumps(place)[1:-1], Path(place).name)
    return dict(json.loads(text)) if places else config


def _read(entry: dict[str, Any], directory: Path, note: str) -> Run:
    problems: list[str] = []
    status_problems: list[str] = []
    config = _without_places(records.read_document(directory / "config.json", problems))
    status = records.read_document(directory / "status.json", status_problems)
    verdict, reason = _verdict(status, status_problems, note)
    if verdict == "ok" and not config:
        verdict, reason = "failed", f"cannot be used: {problems[0] if problems else 'no config'}"
    if "this version reads" in reason:
        reason += f"; './lab resume {directory.parent.name}' runs it again"
    facts: dict[str, Any] = {}
    if verdict == "ok":
        for name in ("manifest", "calibration"):
            facts[name] = records.read_document(directory / f"{name}.json", problems)
        found = records.read_congestion_controls(directory)
        if programs.runs_programs(config):
            found = programs.congestion_controls(directory)
        facts["congestion_controls"] = found
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
        problems=problems if verdict == "ok" else [],
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


def _frame(
    runs: Sequence[Run],
    pattern: str,
    schema: records.Schema,
    layers: list[pl.DataFrame] | None = None,
) -> pl.DataFrame:
    """One log of all runs, each row led by the columns that say whose it is.

    Losses per layer are summed into `layers`, where given, and left out of the frame.
    """
    factors = factor_names(runs)
    kept = {name: kind for name, kind in schema.items() if name != "tensor_loss"}
    frames = [pl.DataFrame(schema=_labels(factors) | kept)]
    for run in runs:
        assert run.directory is not None
        problems = run.problems if _is_expected(pattern, run.config) else []
        paths = sorted((run.directory / "events").glob(pattern))
        for path in paths or [run.directory / "events" / pattern]:
            frame = _labelled(records.read_lines(path, schema, problems), run, factors)
            if layers is not None:
                if frame["tensor_loss"].count():
                    layers.append(records.summed_layer_loss(frame))
                frame = frame.drop("tensor_loss")
            frames.append(frame)
    return pl.concat(frames)


def _is_expected(pattern: str, config: dict[str, Any]) -> bool:
    """Whether a run with this configuration writes such a log at all."""
    if programs.is_of_script(config) and pattern != _IMPAIRMENTS:
        return False
    if programs.runs_programs(config) and pattern != _IMPAIRMENTS:
        # Whether programs announce rounds is up to them, unless the experiment states how many.
        return pattern == _ROUNDS and bool(config.get("rounds"))
    if pattern == _EFFECTS:
        return bool(records.section(config, "training").get("measure_every"))
    return pattern != _IMPAIRMENTS or bool(config.get("impairments"))


def _remark_on_missing_rounds(runs: Sequence[Run], rounds: pl.DataFrame) -> None:
    found = dict(rounds.group_by("run_key").len().iter_rows())
    for run in runs:
        planned, logged = run.config.get("rounds"), found.get(run.key, 0)
        if programs.is_of_script(run.config):
            continue
        if isinstance(planned, int) and logged != planned:
            lacks = "maximum"
            if not programs.runs_programs(run.config):
                lacks = "training time, bytes or maximum"
            run.problems.append(f"{logged} of {planned} rounds in rounds.jsonl: it has no {lacks}")


def _labels(factors: list[str]) -> dict[str, Any]:
    """The columns that lead every frame, and their types."""
    names = ["run_key", "arm", "seed", *(FACTOR_PREFIX + name for name in factors)]
    return dict.fromkeys(names, pl.String) | {"seed": pl.Int64}


def _labelled(frame: pl.DataFrame, run: Run, factors: list[str]) -> pl.DataFrame:
    values = [run.key, run.arm, run.seed, *(factor_text(run.factors.get(f)) for f in factors)]
    labels = zip(values, _labels(factors).items(), strict=True)
    return frame.select(
        *(pl.lit(value, dtype=kind).alias(name) for value, (name, kind) in labels), pl.all()
    )


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
