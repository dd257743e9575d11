"""Finds an experiment's folder and the directories of its runs, and chooses among them.

`KEY/` is a finished run, `KEY.partial/` one in progress or left behind, `KEY.attemptN/` an earlier
attempt that was not ok and is kept for the record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.data.evidence import factor_text

REPORT = "report"  # the folder of an experiment's report, and of the index of all
CONFIG = "config.json"  # of a run
_KEPT = "provenance.json"  # of results that were kept
UNFINISHED = "unfinished: in progress, or left behind"
_SUFFIX = re.compile(r"^(?P<key>.+)\.(?:(?P<partial>partial)|attempt(?P<attempt>\d+))$")


@dataclass(frozen=True, order=True)
class RunDirectory:
    """A directory of a run; of several for one run, the greatest is the one that counts."""

    rank: tuple[int, int]
    path: Path
    note: str  # empty for a finished directory


def find_experiment(results_dir: Path, experiment: str | None = None) -> Path:
    """The folder of an experiment below `results_dir`; the one planned last if none is named."""
    if not results_dir.is_dir():
        raise ValueError(
            f"{results_dir}: no such folder; valid: one given to ./lab run, or of kept results"
        )
    if experiment is None and (results_dir / CONFIG).is_file():
        return results_dir
    unplanned = any(results_dir.glob("*/config.json"))  # such as repetitions
    holds_experiments = any(results_dir.glob("*/plan.json"))
    if (results_dir / "plan.json").is_file() or (unplanned and not holds_experiments):
        if experiment not in (None, results_dir.resolve().name):
            raise ValueError(f"{results_dir}: holds no runs of {experiment!r}")
        return results_dir.resolve() if not results_dir.name.strip(".") else results_dir
    known = sorted(path.parent for path in results_dir.glob("*/plan.json"))
    known = known or sorted({path.parents[1] for path in results_dir.glob("*/*/config.json")})
    if not known:
        _refuse_kept(results_dir, experiment)
    if experiment is not None:
        for folder in known:
            if folder.name == experiment:
                return folder
        names = ", ".join(folder.name for folder in known) or "none; run ./lab run first"
        raise ValueError(f"{results_dir}: no experiment {experiment!r} here; valid: {names}")
    if not known:
        raise ValueError(
            f"{results_dir}: no runs found; valid: a folder with EXPERIMENT/plan.json in it, "
            "as ./lab run writes it"
        )
    return max(known, key=_planned_at)


def _refuse_kept(results_dir: Path, experiment: str | None) -> None:
    """Refuse a folder of kept results, an experiment's or all, and say what reads them."""
    folder = results_dir / (experiment or "NAME")
    if (results_dir / _KEPT).is_file():
        folder = results_dir
    elif not any(results_dir.glob(f"*/{_KEPT}")):
        return
    raise ValueError(
        f"{results_dir}: holds kept results, not run directories; valid: the folder given to "
        f"./lab run, or polars.read_csv of {folder / 'rows.csv'} (docs/reference/kept-results.md)"
    )


def _planned_at(folder: Path) -> tuple[float, str]:
    plan = folder / "plan.json"
    return (plan.stat().st_mtime if plan.is_file() else 0.0, folder.name)


def of_experiment(folder: Path) -> dict[str, list[RunDirectory]]:
    """All directories of an experiment's runs by key, those of one key in ascending order."""
    if (folder / CONFIG).is_file():
        return {folder.name: [RunDirectory((2, 0), folder, "")]}
    by_key: dict[str, list[RunDirectory]] = {}
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.is_symlink() or path.name.startswith("."):
            continue
        if path.name == REPORT:
            continue
        match = _SUFFIX.match(path.name)
        if match is None:
            directory = RunDirectory((2, 0), path, "")
        elif match["partial"]:
            directory = RunDirectory((1, 0), path, UNFINISHED)
        else:
            attempt = int(match["attempt"])
            directory = RunDirectory((0, attempt), path, f"attempt {attempt}")
        by_key.setdefault(match["key"] if match else path.name, []).append(directory)
    return {key: sorted(directories) for key, directories in by_key.items()}


def choose(
    planned: Sequence[dict[str, Any]],
    *,
    arms: Sequence[str] | None,
    seeds: Sequence[int] | None,
    point: Mapping[str, object] | None,
) -> list[dict[str, Any]]:
    """The entries of a plan that have one of these arms and seeds, and these levels; None: all."""
    levels = {factor: [factor_text(level)] for factor, level in (point or {}).items()}
    asked: dict[str, Any] = {"arm": arms, "seed": seeds, **levels}
    asked = {name: values for name, values in asked.items() if values is not None}
    labels = [
        {name: factor_text(level) for name, level in (entry.get("factors") or {}).items()}
        | {"arm": entry.get("arm"), "seed": entry.get("seed")}
        for entry in planned
    ]
    for name, values in asked.items():
        if isinstance(values, str):
            raise ValueError(f"{name}s {values!r}; valid: a list, such as [{values!r}]")
        known = dict.fromkeys(label[name] for label in labels if name in label)
        if not known:
            factors = dict.fromkeys(
                name for entry in planned for name in entry.get("factors") or {}
            )
            valid = ", ".join(factors) or "none, the planned runs have no factors"
            raise ValueError(f"no planned run of factor {name!r}; valid: {valid}")
        for value in values:
            if value not in known:
                valid = ", ".join(map(str, known))
                raise ValueError(f"no planned run of {name} {value!r}; valid: {valid}")
    chosen = [
        entry
        for entry, label in zip(planned, labels, strict=True)
        if all(label.get(name) in values for name, values in asked.items())
    ]
    if planned and not chosen:
        raise ValueError(
            f"no planned run has arms {arms}, seeds {seeds} and point {point} together; valid: a "
            "combination that results.runs has"
        )
    return chosen
