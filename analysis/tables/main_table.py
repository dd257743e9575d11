"""The main table: every arm's latency, training time, accuracy, loss, passes and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis.data.metrics import IMPAIRED, TASK_METRICS, describe
from analysis.statistics.intervals import ENOUGH_SEEDS, Estimate
from analysis.summary import phases
from analysis.summary.lookup import (
    entry,
    is_of_several_tasks,
    of_programs,
    points,
    unlike,
    with_programs,
)
from analysis.tables.cells import measured, missing
from analysis.tables.rendering import Cell, Table, row
from analysis.words import no_pairs
from analysis.words.formatting import DASH, Unit, metric_unit

WAIVED = "With waived gates: "  # begins a note; the cautions tell more of it
_CALM = "round_latency_s.calm_mean"  # of programs alone: of training the ratios have it
ROWS = (
    "round_latency_s.burst_mean",
    "gather_latency_s.burst_mean",
    IMPAIRED,  # one row per kind of impairment, where there are several
    _CALM,
    "round_latency_s.mean",
    "round_latency_s.p95",
    "round_latency_s.p99",
    "round_latency_s.p99_over_p50",
    "round_latency_s.max",
    "training_time_s",
    "accuracy",
    "perplexity",
    "time_to_target_s",
    "rounds_to_target",
    "target_reached",
    "realised_loss.gather",
    "realised_loss.broadcast",
    "passes_per_transfer",
    "bytes_sent",
    "burst_tolerance.gather",
    "burst_tolerance.broadcast",
    "communication_share",
    "compute_to_communication",
    "pace_overrun_share",
    "critical_share",
    "relative_error.gathered",
    "relative_error.applied",
    "cosine.gathered",
    "cosine.applied",
    "replica_divergence",
    "packets_dropped",
    "workers_lost",
)
_PACED = ("communication_share", "compute_to_communication")
_NOT_PHASED = "without effect: the tolerance of this arm does not depend on the phase"
_SEVERAL_TASKS = "several tasks, of which a mean would be nobody's: see the tables by point"
_NOTHING_LEARNT = "nothing is learnt: with pace 'payload-only' payloads have random content"


def main_table(
    summary: dict[str, Any], *, shown: Sequence[str] = ROWS, with_runs: bool = True
) -> Table:
    """One column per arm, one row per metric; the records hold every metric unrounded."""
    arms: dict[str, Any] = summary["arms"]
    counts = [cell["n_runs"] for cell in arms.values()]
    rows = [row("Runs (n)", *map(str, counts))]
    used = [", ".join(cell.get("congestion_control", [])) for cell in arms.values()]
    if any(used) and with_runs:
        rows.append(row("Congestion control, read back", *(each or DASH for each in used)))
    estimates = {
        name: [entry(summary, "arms", arm, name) for arm in arms]
        for name in (with_programs(shown, arms) if with_runs else shown)
    }
    # All latencies share a unit, so that they can be compared within a column too.
    latencies = [
        each.value for name, found in estimates.items() if "latency_s." in name for each in found
    ]
    paces = summary.get("paces") or ["real"]
    phased = phases.arms(summary)
    for name, found in estimates.items():
        if not _is_shown(summary, name, found):
            continue
        of_unit = latencies if "latency_s." in name else [each.value for each in found]
        label, unit = metric_unit(name, of_unit)
        if name in _PACED and paces != ["real"]:
            label += f", {' and '.join(paces)}"
        absent = describe(name).absent
        if name in TASK_METRICS and paces == ["payload-only"]:
            absent = _NOTHING_LEARNT
        elif name in TASK_METRICS and is_of_several_tasks(summary):
            absent = _SEVERAL_TASKS
        cells = [_cell(each, unit, absent, n) for each, n in zip(found, counts, strict=True)]
        if name == "critical_share":
            cells = [
                cell
                if not phased or arm in phased or cell.note
                else replace(cell, note=_NOT_PHASED)
                for arm, cell in zip(arms, cells, strict=True)
            ]
        rows.append(row(label, *cells))
    return Table(
        title=f"{summary['experiment']}: what was measured, by arm",
        columns=["", *arms],
        rows=rows if with_runs else rows[1:],
        notes=_notes(summary),
        records=_records(summary),
    )


def _is_shown(summary: dict[str, Any], name: str, estimates: list[Estimate]) -> bool:
    known = any(each.value is not None for each in estimates)
    if summary.get("workload") == "programs":  # which of all metrics they have is up to them
        return known
    if name == _CALM:
        return False
    if name == "workers_lost":
        return any(each.value for each in estimates)
    if name == "accuracy":
        return known or summary.get("task_metric") != "perplexity"
    return known or not describe(name).optional


def _cell(estimate: Estimate, unit: Unit, absent: str, n_runs: int) -> Cell:
    if estimate.value is None:
        return missing(note=absent if n_runs else "no ok run of this arm")
    return measured(estimate, unit, with_n=estimate.n != n_runs)


def _of_different_runs(summary: dict[str, Any]) -> list[str]:
    """A warning where arms lack runs that others have: their columns are not to be compared."""
    pairs = " and ".join(unlike(summary))
    if not pairs:
        return []
    both = f"both have, {no_pairs.SAME}" if "no_pairs" in summary else "both have"
    return [f"The means of {pairs} are of different runs. The ratios are of those that {both}."]


def _notes(summary: dict[str, Any]) -> list[str]:
    measure = next(iter(of_programs(summary["arms"])), "rounds_per_s")
    seeds = [entry(summary, "arms", arm, measure).n for arm in summary["arms"]]
    fewest = min(filter(None, seeds), default=0)
    most = max(seeds, default=0)
    notes = []
    if most == 1:
        notes.append("Each number comes from one seed: there is no interval.")
    elif most >= ENOUGH_SEEDS:
        notes.append("Each number is a mean over seeds, with its 95 % interval (Student's t).")
    elif most > 1:
        notes.append("Each number is a mean over seeds, with the values of the seeds.")
    if most > 1 and fewest < ENOUGH_SEEDS:
        notes.append(f"Fewer than {ENOUGH_SEEDS} seeds give no interval; here n = {fewest}.")
    if points(summary):
        notes.append(
            "These are averages over the points of the sweep; tables by point follow below."
        )
    verdicts = summary["verdicts"]
    planned = sum(verdicts.values())
    outside = verdicts | {
        "ok": 0,
        "invalid": verdicts["invalid"] - summary.get("invalid_included", 0),
    }
    if left_out := [f"{count} {name}" for name, count in outside.items() if count]:
        notes.append(f"Left out of these numbers: {', '.join(left_out)} (of {planned}).")
    notes += _of_different_runs(summary)
    if waived := summary.get("waived_gates"):
        notes.append(f"{WAIVED}{'; '.join(waived)}.")
    return notes


def _records(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"arm": arm, "metric": name, "unit": describe(name).unit}
        | entry(summary, "arms", arm, name).as_json()
        for arm, cell in summary["arms"].items()
        for name in _leaves(cell)
    ]


def _leaves(cell: dict[str, Any], path: str = "") -> list[str]:
    names: list[str] = []
    for key, value in cell.items():
        if isinstance(value, dict):
            names += [path + key] if "value" in value else _leaves(value, f"{path}{key}.")
    return names
