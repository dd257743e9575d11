"""Keeps an experiment's results small enough to commit: `./lab report NAME --readme`."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.data import kept_rows
from analysis.data.evidence import Evidence, machine_text
from analysis.data.load import load
from analysis.data.metrics import in_table, is_tail_quantile
from analysis.report import remarks
from analysis.report.writing import write_report
from analysis.summary.document import json_text, summarise
from analysis.summary.lookup import pairs
from analysis.tables.by_arm import main_table
from analysis.tables.rendering import to_markdown

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "experiments/results"
SUMMARY, PROVENANCE, MAIN_TABLE = "summary.json", "provenance.json", "main.md"
_SCHEMA = 2  # of provenance.json
SIMULATED = "-simulated"  # ends the name of a folder beside that of measured results
AGAIN = "keep these results again"
_FIGURES = ("ratio-along-factor.png", "learning-along-factor.png", "latency-over-rounds.png")


def keep(results_dir: Path, experiment: str | None = None, *, root: Path = ROOT) -> Path:
    """Keep an experiment's results in `experiments/results/NAME/`, in place of older ones."""
    results = load(results_dir, experiment)
    if not results.ok_runs:
        raise ValueError(f"{results_dir}: no ok run of {results.experiment}; valid: one or more")
    folder = root / RESULTS / results.experiment
    kinds = {is_simulated(run.manifest) for run in results.ok_runs}
    if kinds == {True} and _kinds(folder) == {False}:
        folder = folder.with_name(folder.name + SIMULATED)
    kinds |= _kinds(folder)
    if len(kinds) > 1:
        raise ValueError(
            f"{results_dir}: of {results.experiment} there are simulated runs and measured ones, "
            f"what {folder} keeps included; valid: one kind of them under one name"
        )
    report = write_report(results_dir, results.experiment)
    folder.mkdir(parents=True, exist_ok=True)
    kept_rows.write(folder, results)
    write_derived(folder)
    for path in report.figures:
        if path.name in _FIGURES:
            shutil.copyfile(path, folder / path.name)
    return folder


def is_simulated(manifest: dict[str, Any]) -> bool:
    """Whether the run of this manifest was of `./lab simulate`."""
    return bool(manifest.get("simulated"))


def _kinds(folder: Path) -> set[bool]:
    """Whether what a folder keeps is simulated; empty where it keeps nothing."""
    kept = (folder / kept_rows.MANIFEST).is_file()
    return {is_simulated(read(folder, kept_rows.MANIFEST)[0])} if kept else set()


def derived(evidence: kept_rows.KeptRows) -> dict[str, str]:
    """The files that are made of kept evidence alone: their texts by name."""
    summary = summarise(evidence)
    rows = recomputable(in_table("main"), from_rounds=evidence.rounds is not None)
    shown = {left + sign + right for left, right in pairs(evidence.arms) for sign in "/-"}
    return {
        SUMMARY: json_text(_small(summary, shown)),
        PROVENANCE: json_text(_provenance(evidence, summary)),
        MAIN_TABLE: to_markdown(main_table(summary, shown=rows)),
    }


def recomputable(metrics: Sequence[str], *, from_rounds: bool) -> list[str]:
    """Those of some metrics that follow from what is kept: quantiles do where each round is."""
    return [each for each in metrics if from_rounds or not is_tail_quantile(each)]


def write_derived(folder: Path) -> None:
    """Write them from the rows that a folder keeps."""
    for name, text in derived(kept_rows.read(folder)).items():
        (folder / name).write_text(text, encoding="utf-8")


def read(folder: Path, *names: str) -> list[dict[str, Any]]:
    """Documents of kept results, by default the summary."""
    return [kept_rows.document_of(folder / name, AGAIN) for name in names or (SUMMARY,)]


def _provenance(results: Evidence, summary: dict[str, Any]) -> dict[str, Any]:
    began = sorted(str(run.began_at) for run in results.runs if run.began_at)
    machines = list(dict.fromkeys(machine_text(run.manifest) for run in results.ok_runs))
    planned = {run.key for run in results.runs}
    refused = [run for run in results.others if run.key in planned and run.verdict != "ok"]
    return {
        "schema": _SCHEMA,
        "experiment": results.experiment,
        "command": results.commands[0],
        "further_commands": results.commands[1:],
        "machine": "; ".join(machines),
        "began": began[0] if began else "",
        "commits": sorted({str(run.manifest.get("commit") or "") for run in results.ok_runs}),
        "verdicts": results.verdicts(),
        "refused": dict(sorted(Counter(run.verdict for run in refused).items())),
        "remarks": remarks.cautions(results, summary),
    }


def _small(value: Any, shown: set[str], section: str = "") -> Any:
    """A summary without what no table shows, and with six digits: a small part of its size."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_small(each, shown) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _small(each, shown, name)
        for name, each in value.items()
        if not (section in ("ratios", "differences") and name not in shown)
        and not (name != "ours" and isinstance(each, dict) and each.get("value", 0) is None)
    }
