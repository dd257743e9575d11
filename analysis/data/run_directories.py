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


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which runs are asked for; None: all."""

    arms: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    point: Mapping[str, object] | None = None

    def of(self, planned: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The entries of a plan that are chosen."""
        entries = list(planned)
        for name, chosen in (("arm", self.arms), ("seed", self.seeds)):
            if chosen is None:
                continue
            if isinstance(chosen, str):
                raise ValueError(f"{name}s {chosen!r}; valid: a list, such as [{chosen!r}]")
            known = list(dict.fromkeys(entry.get(name) for entry in planned))
            for each in chosen:
                _require(name, each, known)
            entries = [entry for entry in entries if entry.get(name) in chosen]
        levels = [(entry, _levels(entry)) for entry in planned]
        for factor, level in (self.point or {}).items():
            _require(
                "factor", factor, list(dict.fromkeys(name for _, each in levels for name in each))
            )
            known = list(dict.fromkeys(each[factor] for _, each in levels if factor in each))
            _require(factor, factor_text(level), known)
            entries = [
                entry for entry in entries if _levels(entry).get(factor) == factor_text(level)
            ]
        if planned and not entries:
            raise ValueError(
                f"no planned run has arms {self.arms}, seeds {self.seeds} and point {self.point} "
                "together; valid: a combination that results.runs has"
            )
        return entries


def _levels(entry: Mapping[str, Any]) -> dict[str, str | None]:
    factors = entry.get("factors")
    return {
        str(name): factor_text(value)
        for name, value in (factors.items() if isinstance(factors, dict) else ())
    }


def _require(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        if not known:
            raise ValueError(f"{name} {value!r}: the planned runs have no {name}s")
        raise ValueError(f"no planned run of {name} {value!r}; valid: {', '.join(map(str, known))}")
