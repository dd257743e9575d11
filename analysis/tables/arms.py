"""The main table: every arm's latency, training time, accuracy, loss, passes and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.data import learning, metrics
from analysis.statistics.intervals import ENOUGH_SEEDS, SAMPLES_FOR_QUANTILE, Estimate
from analysis.summary.summary import entry
from analysis.tables.model import Cell, Table
from analysis.words import formatting

_ROWS = (
    "round_latency_s.burst_mean",
    metrics.IMPAIRED,  # one row per kind of impairment, where there are several
    "round_latency_s.mean",
    "round_latency_s.p95",
    "round_latency_s.p99",
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
# What not every experiment asks for: without a value in any arm, the row is left out.
_ON_REQUEST = {
    "perplexity",
    "time_to_target_s",
    "rounds_to_target",
    "target_reached",
    "pace_overrun_share",
    "relative_error.gathered",
    "relative_error.applied",
    "cosine.gathered",
    "cosine.applied",
    "replica_divergence",
}
_PACED = ("communication_share", "compute_to_communication")
NOTHING_LEARNT = "nothing is learnt: with pace 'payload-only' payloads have random content"
_WHY_NOT = {
    "passes_per_transfer": "this transport works without passes",
    "realised_loss.gather": "no chunk counts were logged: a byte stream loses none",
    "realised_loss.broadcast": "no chunk counts were logged: a byte stream loses none",
    "round_latency_s.p95": f"fewer than {SAMPLES_FOR_QUANTILE[0.95]} rounds per run",
    "round_latency_s.p99": f"fewer than {SAMPLES_FOR_QUANTILE[0.99]} rounds per run",
    "round_latency_s.burst_mean": "no round of an ok run was hit by an impairment",
    "burst_tolerance.gather": "no round of an ok run was hit by an impairment",
    "burst_tolerance.broadcast": "no round of an ok run was hit by an impairment",
    "packets_dropped": "the controller reported no count",
    "time_to_target_s": "no run of this arm reached the target",
    "rounds_to_target": "no run of this arm reached the target",
}


def arm_table(
    summary: dict[str, Any], *, shown: Sequence[str] = _ROWS, count: bool = True
) -> Table:
    """One column per arm, one row per metric; the records hold every metric unrounded.

    `shown` names the rows' metrics; with `count` the number of runs stands first.
    """
    arms: dict[str, Any] = summary["arms"]
    counts = [cell["n_runs"] for cell in arms.values()]
    n_row = [Cell(text="Runs (n)"), *(Cell(text=str(each)) for each in counts)]
    rows = [n_row] if count else []
    names = metrics.expand(shown, arms)
    latencies = [
        entry(summary, "arms", arm, name).value
        for arm in arms
        for name in names
        if "latency_s." in name
    ]
    for name in names:
        metric = metrics.describe(name)
        estimates = [entry(summary, "arms", arm, name) for arm in arms]
        if not _is_shown(summary, name, estimates):
            continue
        # All latencies share a unit, so that one can compare down a column too.
        of_unit = latencies if "latency_s." in name else [each.value for each in estimates]
        unit = formatting.unit_for(metric.unit, of_unit)
        label = f"{metric.label} ({unit.symbol})" if unit.symbol else metric.label
        paces = summary.get("paces") or ["real"]
        if name in _PACED and paces != ["real"]:
            label += f", {' and '.join(paces)}"
        why = _WHY_NOT.get(name)
        if name in learning.TASK_METRICS and summary.get("paces") == ["payload-only"]:
            why = NOTHING_LEARNT
        cells = [_cell(each, unit, why, runs) for each, runs in zip(estimates, counts, strict=True)]
        rows.append([Cell(text=label), *cells])
    return Table(
        title=f"{summary['experiment']}: what was measured, by arm",
        columns=["", *arms],
        rows=rows,
        notes=_notes(summary, counts),
        records=_records(summary),
    )


def _is_shown(summary: dict[str, Any], name: str, estimates: list[Estimate]) -> bool:
    known = any(each.value is not None for each in estimates)
    if name == "workers_lost":
        return any(each.value for each in estimates)
    if name == "accuracy":
        return known or summary.get("task_metric") != "perplexity"
    return known or name not in _ON_REQUEST


def _cell(estimate: Estimate, unit: formatting.Unit, why: str | None, n_runs: int) -> Cell:
    if estimate.value is None:
        if n_runs == 0:
            return Cell(text=formatting.DASH, note="no ok run of this arm", tone="quiet")
        return Cell(
            text=formatting.DASH,
            note=why or "not in the logs of this arm's runs",
            tone="quiet",
        )
    details = [formatting.interval(estimate, unit)]
    if estimate.n != n_runs:
        details.append(f"n = {estimate.n}")
    return Cell(
        text=formatting.number(estimate.value, unit), detail=", ".join(filter(None, details))
    )


def _notes(summary: dict[str, Any], counts: list[int]) -> list[str]:
    notes = ["Means over seeds, each with its 95 % bootstrap interval over seeds."]
    seeds = [entry(summary, "arms", arm, "rounds_per_s").n for arm in summary["arms"]]
    most = max(seeds, default=0) if any(counts) else 0
    if most == 1:
        notes.append("One run per arm: there is no interval.")
    elif 1 < most < ENOUGH_SEEDS:
        notes.append(
            f"With n = {most} an interval is indicative only; use {ENOUGH_SEEDS} seeds or more."
        )
    if summary.get("points"):
        notes.append("Averaged over the points of the sweep; they stand apart further down.")
    left_out = {
        verdict: count
        for verdict, count in summary["verdicts"].items()
        if verdict != "ok" and count
    }
    if left_out:
        listed = ", ".join(f"{count} {verdict}" for verdict, count in left_out.items())
        notes.append(f"Not in these numbers: {listed} (of {sum(summary['verdicts'].values())}).")
    return notes


def _records(summary: dict[str, Any]) -> list[dict[str, Any]]:
    records = []
    for arm, cell in summary["arms"].items():
        for name in _leaves(cell):
            metric = metrics.describe(name)
            estimate = entry(summary, "arms", arm, name).as_json()
            records.append({"arm": arm, "metric": name, "unit": metric.unit, **estimate})
    return records


def _leaves(cell: dict[str, Any], path: str = "") -> list[str]:
    names: list[str] = []
    for key, value in cell.items():
        if isinstance(value, dict):
            names += [path + key] if "value" in value else _leaves(value, f"{path}{key}.")
    return names
