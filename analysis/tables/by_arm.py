"""Tables of what each arm measured: in a whole experiment, and at each point of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from analysis.data.load import Results
from analysis.data.metrics import TASK_METRICS, describe, in_table
from analysis.formatting import DASH, PERCENT, Unit, joined, metric_unit, number
from analysis.statistics import ENOUGH_SEEDS, Estimate
from analysis.summary import lookup
from analysis.summary.lookup import entry, factors_text, is_of_several_tasks, of_programs, points
from analysis.tables.rendering import Cell, Table, measured, missing, row, transposed

WAIVED = "With waived gates: "  # begins a note; the cautions tell more of it
_CALM = "round_latency_s.calm_mean"  # of programs alone: of training the ratios have it
_PACED = ("communication_share", "compute_to_communication")
_NOT_PHASED = "without effect: the tolerance of this arm does not depend on the phase"
_SEVERAL_TASKS = "several tasks, of which a mean would be nobody's: see the tables by point"
_NOTHING_LEARNT = "nothing is learnt: with pace 'payload-only' payloads have random content"
_MANY_ARMS = 9  # do not stand beside each other in a page


def main_table(
    summary: dict[str, Any], *, shown: Sequence[str] = in_table("main"), with_runs: bool = True
) -> Table:
    arms: dict[str, Any] = summary["arms"]
    rows = []
    if with_runs:
        rows.append(row("Runs (n)", *(str(cell["n_runs"]) for cell in arms.values())))
        used = [", ".join(cell.get("congestion_control", [])) for cell in arms.values()]
        rows += [row("Congestion control, read back", *used)] if any(used) else []
        shown = lookup.with_programs(shown, arms)
    estimates = {name: [entry(summary, "arms", arm, name) for arm in arms] for name in shown}
    # All latencies share a unit, so that they can be compared within a column too.
    latencies = [
        estimate.value
        for name, of_arms in estimates.items()
        if "latency_s." in name
        for estimate in of_arms
    ]
    for name, of_arms in estimates.items():
        if _is_shown(summary, name, of_arms):
            values = [estimate.value for estimate in of_arms]
            label, unit = metric_unit(name, latencies if "latency_s." in name else values)
            rows.append(_metric_row(summary, name, of_arms, label, unit))
    return Table(
        title=f"{summary['experiment']}: what was measured, by arm",
        columns=["", *arms],
        rows=rows,
        notes=_notes(summary),
        records=[
            {"arm": arm, "metric": name, "unit": describe(name).unit}
            | entry(summary, "arms", arm, name).as_json()
            for arm, cell in arms.items()
            for name in _names(cell)
        ],
    )


def _is_shown(summary: dict[str, Any], name: str, estimates: list[Estimate]) -> bool:
    is_measured = any(estimate.value is not None for estimate in estimates)
    if summary.get("workload") == "programs":  # which of all metrics they have is up to them
        return is_measured
    if name == _CALM:
        return False
    if name == "workers_lost":
        return any(estimate.value for estimate in estimates)
    if name == "accuracy":
        return is_measured or summary.get("task_metric") != "perplexity"
    return is_measured or not describe(name).optional


def _metric_row(
    summary: dict[str, Any], name: str, estimates: list[Estimate], label: str, unit: Unit
) -> list[Cell]:
    paces, absent = summary.get("paces") or ["real"], describe(name).absent
    if name in _PACED and paces != ["real"]:
        label += f", {' and '.join(paces)}"
    if name in TASK_METRICS and paces == ["payload-only"]:
        absent = _NOTHING_LEARNT
    elif name in TASK_METRICS and is_of_several_tasks(summary):
        absent = _SEVERAL_TASKS
    phased = {run["arm"] for run in lookup.critical_rounds(summary)}
    cells = []
    for (arm, of_arm), estimate in zip(summary["arms"].items(), estimates, strict=True):
        n_runs = of_arm["n_runs"]
        if estimate.value is None:
            cell = missing(note=absent if n_runs else "no ok run of this arm")
        else:
            cell = measured(estimate, unit, with_n=estimate.n != n_runs)
            if name == "critical_share" and phased and arm not in phased:
                cell = replace(cell, note=_NOT_PHASED)
        cells.append(cell)
    return row(label, *cells)


def _notes(summary: dict[str, Any]) -> list[str]:
    measure = next(iter(of_programs(summary["arms"])), "rounds_per_s")
    seeds = [entry(summary, "arms", arm, measure).n for arm in summary["arms"]]
    fewest, most = min(filter(None, seeds), default=0), max(seeds, default=0)
    notes = []
    if most == 1:
        notes.append("Each number comes from one seed: there is no interval.")
    elif most:
        spread = (
            "its 95 % interval (Student's t)" if most >= ENOUGH_SEEDS else "the values of the seeds"
        )
        notes.append(f"Each number is a mean over seeds, with {spread}.")
        if fewest < ENOUGH_SEEDS:
            notes.append(f"Fewer than {ENOUGH_SEEDS} seeds give no interval; here n = {fewest}.")
    if points(summary):
        notes.append(
            "These are averages over the points of the sweep; tables by point follow below."
        )
    verdicts = summary["verdicts"]
    planned = sum(verdicts.values())
    outside = {name: count for name, count in verdicts.items() if count and name != "ok"}
    if left_out := [f"{count} {name}" for name, count in outside.items()]:
        notes.append(f"Left out of these numbers: {', '.join(left_out)} (of {planned}).")
    if pairs := " and ".join(lookup.unlike(summary)):
        both = "both have, of one machine and code" if "no_pairs" in summary else "both have"
        notes.append(
            f"The means of {pairs} are of different runs. The ratios are of those that {both}."
        )
    if waived := summary.get("waived_gates"):
        notes.append(f"{WAIVED}{'; '.join(waived)}.")
    return notes


def _names(cell: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in cell.items():
        if isinstance(value, dict):
            yield from [path + key] if "value" in value else _names(value, f"{path}{key}.")


def metric_tables(
    summary: dict[str, Any], *, only: Sequence[str] = in_table("points")
) -> list[Table]:
    shown = lookup.with_values(points(summary), "arms", summary["arms"], only)
    return [_metric_table(summary, name) for name in shown]


def _metric_table(summary: dict[str, Any], name: str) -> Table:
    arms, parts = list(summary["arms"]), points(summary)
    estimates = [[entry(part, "arms", arm, name) for arm in arms] for part in parts]
    values = [estimate.value for of_arms in estimates for estimate in of_arms]
    label, unit = metric_unit(name, values)
    rows, records = [], []
    for part, of_arms in zip(parts, estimates, strict=True):
        cells: list[Cell] = []
        for arm, estimate in zip(arms, of_arms, strict=True):
            n_runs = part["arms"][arm]["n_runs"]
            if n_runs == 0:
                cells.append(Cell(text="0 ok runs", detail="at this point", tone="quiet"))
            elif estimate.value is None:
                cells.append(missing(detail=f"not measured, n = {n_runs}"))
            else:
                cells.append(measured(estimate, unit))
            record = {"arm": arm, "metric": name, "unit": describe(name).unit}
            records.append(part["factors"] | record | estimate.as_json())
        if any(cell.text != DASH for cell in cells):
            rows.append(row(factors_text(part["factors"]), *cells))
    table = Table(
        title=f"{summary['experiment']}: {label}, by point of the sweep",
        columns=["Point", *arms],
        rows=rows,
        notes=[
            "Each number is a mean over n seeds, with its 95 % interval (Student's t) or, where "
            "there is none, the seeds' values."
        ],
        records=records,
    )
    if len(arms) < _MANY_ARMS:
        return table
    turned = transposed(table)
    title, columns = f"{summary['experiment']}: {label}, by arm", ["Arm", *turned.columns[1:]]
    return replace(turned, title=title, columns=columns, records=records)


_ROUND_PARTS = {
    "compute_s": "Compute (s)",
    "gather_s": "Gather (s)",
    "mean_update_s": "Mean, update (s)",
    "broadcast_s": "Broadcast (s)",
    "waiting_s": "Waiting (s)",
}


def round_time_table(results: Results) -> Table:
    of_arms = results.frame("round_parts").group_by("arm")
    means = of_arms.agg(pl.len().alias("rounds"), pl.col("iteration_s", *_ROUND_PARTS).mean())
    records = means.sort(pl.col("arm").cast(pl.Enum(results.arms))).to_dicts()
    rows = []
    for mean in records:
        cells = [Cell(text=mean["arm"]), Cell(text=number(mean["iteration_s"]))]
        for name in _ROUND_PARTS:
            share = number(mean[name] / mean["iteration_s"], PERCENT)
            cells.append(Cell(text=number(mean[name]), detail=f"{share} %"))
        rows.append(cells)
    return Table(
        title=f"{results.experiment}: where a round's time goes",
        columns=["Arm", "Round (s)", *_ROUND_PARTS.values()],
        rows=rows,
        notes=[
            "Means over the rounds of the ok runs, in brackets the share of the round. Compute: "
            "mean over the workers. Waiting: for slower workers, and for messages between steps."
        ],
        records=records,
    )


def critical_rounds_table(summary: dict[str, Any]) -> Table:
    runs, rows = lookup.critical_rounds(summary), []
    for arm in summary["arms"]:
        of_arm = sorted(
            (run for run in runs if run["arm"] == arm), key=lambda run: run["critical_share"]
        )
        if not of_arm:
            continue
        cells = [measured(entry(summary, "arms", arm, "critical_share"), PERCENT)]
        lowest, highest = of_arm[0], of_arm[-1]
        alike = len(of_arm) > 1 and lowest["critical_share"] == highest["critical_share"]
        for run in (lowest, highest):
            detail = "all runs" if alike else joined(run["point"], f"seed {run['seed']}")
            cells.append(Cell(text=number(run["critical_share"], PERCENT), detail=detail))
        rows.append(row(arm, *cells))
    note = (
        "In critical rounds these arms tolerate little loss, in all others much. For other arms "
        "the phase changes nothing."
    )
    return Table(
        title=f"{summary['experiment']}: critical rounds, where the tolerance depends on the phase",
        columns=["Arm", "Share of critical rounds (%)", "Lowest of a run", "Highest of a run"],
        rows=rows,
        notes=[note] if rows else [],
        records=runs,
    )
