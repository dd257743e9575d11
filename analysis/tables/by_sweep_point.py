"""Tables with a row per point of a sweep: one metric by arm, or ratios of arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis.data.metrics import describe
from analysis.statistics.intervals import Estimate
from analysis.summary.lookup import (
    entry,
    factors_text,
    interval_words,
    p_value,
    points,
    ratio_names,
)
from analysis.tables import cells, ratios
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting

_METRICS = (
    "round_latency_s.burst_mean",
    "round_latency_s.mean",
    "training_time_s",
    "time_to_target_s",
    "accuracy",
    "perplexity",
    "realised_loss.gather",
)
_RATIOS = ("round_latency_s.burst_mean", "round_latency_s.mean", "training_time_s")
_BOUNDS = (
    "The bounds hold for a transfer outside critical phases that the burst hits from end to end. "
    "Byte bound, if only bytes cost time: (1 - low) / (1 - high). Pass bound, if only passes cost "
    "time: ceil(ln low / ln q) / ceil(ln high / ln q). Here low and high are the tolerances of "
    "fixed-low and dblp, and q is the loss."
)


def metric_tables(summary: dict[str, Any], *, only: Sequence[str] = _METRICS) -> list[Table]:
    """One table per metric that has a value: a row per point of the sweep, a column per arm."""
    return [
        _metric_table(summary, name)
        for name in only
        if any(
            entry(point, "arms", arm, name).value is not None
            for point in points(summary)
            for arm in point["arms"]
        )
    ]


def _metric_table(summary: dict[str, Any], name: str) -> Table:
    found = [
        (point, {arm: entry(point, "arms", arm, name) for arm in summary["arms"]})
        for point in points(summary)
    ]
    label, unit = formatting.metric_unit(
        name, [e.value for _, arms in found for e in arms.values()]
    )
    return Table(
        title=f"{summary['experiment']}: {label}, by point of the sweep",
        columns=["Point", *summary["arms"]],
        rows=[
            row(
                factors_text(point["factors"]),
                *(_cell(each, point["arms"][arm]["n_runs"], unit) for arm, each in arms.items()),
            )
            for point, arms in found
        ],
        notes=[
            "Each number is a mean over n seeds, with its 95 % interval "
            f"({interval_words(summary)}) or, where there is none, the seeds' values."
        ],
        records=[
            {**point["factors"], "arm": arm, "metric": name, "unit": describe(name).unit}
            | each.as_json()
            for point, arms in found
            for arm, each in arms.items()
        ],
    )


def _cell(estimate: Estimate, n_runs: int, unit: formatting.Unit) -> Cell:
    if n_runs == 0:
        return Cell(text="0 ok runs", detail="at this point", tone="quiet")
    if estimate.value is None:
        return cells.missing(detail=f"not measured, n = {n_runs}")
    return cells.measured(estimate, unit)


def ratio_tables(summary: dict[str, Any], *, only: Sequence[str] = _RATIOS) -> list[Table]:
    """Every arm over the reference at each point; the first metric's beside the bounds."""
    return [
        _ratio_table(summary, name)
        for name in only
        if any(
            entry(point, "ratios", pair, name).n
            for point in points(summary)
            for pair in ratio_names(summary)
        )
    ]


def _ratio_table(summary: dict[str, Any], name: str) -> Table:
    compared = ratio_names(summary)
    bounded = name == _RATIOS[0] and any(point["limits"] for point in points(summary))
    rows, records = [], []
    for point in points(summary):
        shown = row(factors_text(point["factors"]))
        for pair in compared:
            estimate, p = entry(point, "ratios", pair, name), p_value(point, "ratios", pair, name)
            shown.append(_ratio(point, pair, estimate, p))
            record = {**point["factors"], "ratio": pair, "metric": name, **estimate.as_json()}
            record["p_value"] = p
            if bounded and pair == "fixed-low/dblp":
                record |= {f"{bound}_bound": value for bound, value in point["limits"].items()}
            records.append(record)
        if bounded:
            limits = [point["limits"].get(bound) for bound in ("bytes", "passes")]
            shown += [Cell(text=formatting.number(each), tone="quiet") for each in limits]
        rows.append(shown)
    bounds = ["Byte bound of fixed-low/dblp", "Pass bound of fixed-low/dblp"] if bounded else []
    return Table(
        title=f"{summary['experiment']}: {describe(name).label}, ratios of paired runs by point of "
        "the sweep",
        columns=["Point", *compared, *bounds],
        rows=rows,
        notes=[ratios.NOTE, *([_BOUNDS] if bounded else [])],
        records=records,
    )


def _ratio(point: dict[str, Any], pair: str, estimate: Estimate, p: float | None) -> Cell:
    """The ratio, or why there is none; a note says which seeds lack their partner."""
    if estimate.value is None:
        empty = [arm for arm in pair.split("/") if not point["arms"][arm]["n_runs"]]
        why = f"0 ok runs of {' and '.join(empty)}" if empty else "no seed in common"
        return cells.missing(detail=why)
    cell = cells.ratio(estimate, p=p)
    if seeds := point["unpaired"].get(pair):
        note = f"without {formatting.seeds_text(seeds)}: only one arm of the pair has an ok run"
        return replace(cell, note=note)
    return cell
