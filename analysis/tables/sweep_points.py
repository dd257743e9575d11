"""The points of a sweep side by side: a headline metric by arm, and ratios with their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis.data import metrics
from analysis.statistics.intervals import Estimate
from analysis.summary.summary import entry, p_value, pairs
from analysis.tables import comparison
from analysis.tables.model import Cell, Table
from analysis.words import formatting

_HEADLINES = (
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
    "Bounds for a transfer outside critical phases that the burst hits from end to end: if only "
    "bytes cost time, "
    "(1 - low) / (1 - high); if only passes cost time, ceil(ln low / ln q) / ceil(ln high / ln q), "
    "q being the loss."
)


def point_label(point: dict[str, Any]) -> str:
    """A point of the sweep in words, such as `rtt_s = 0.02, q = 0.9`."""
    return ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in point["factors"].items())


def headline_tables(summary: dict[str, Any], *, only: Sequence[str] = _HEADLINES) -> list[Table]:
    """One table per headline metric: a row per point of the sweep, a column per arm."""
    points = summary.get("points") or []
    return [
        _headline_table(summary, points, name)
        for name in only
        if any(
            entry(point, "arms", arm, name).value is not None
            for point in points
            for arm in point["arms"]
        )
    ]


def _headline_table(summary: dict[str, Any], points: list[dict[str, Any]], name: str) -> Table:
    arms = list(summary["arms"])
    metric = metrics.describe(name)
    cells = {
        (index, arm): entry(point, "arms", arm, name)
        for index, point in enumerate(points)
        for arm in arms
    }
    unit = formatting.unit_for(metric.unit, [each.value for each in cells.values()])
    label = f"{metric.label} ({unit.symbol})" if unit.symbol else metric.label
    return Table(
        title=f"{summary['experiment']}: {label}, by point of the sweep",
        columns=["Point", *arms],
        rows=[
            [
                Cell(text=point_label(point)),
                *(_arm_cell(cells[index, arm], point["arms"][arm]["n_runs"], unit) for arm in arms),
            ]
            for index, point in enumerate(points)
        ],
        notes=["Means over seeds with 95 % bootstrap intervals; n is the number of seeds."],
        records=[
            {**point["factors"], "arm": arm, "metric": name, "unit": metric.unit}
            | cells[index, arm].as_json()
            for index, point in enumerate(points)
            for arm in arms
        ],
    )


def _arm_cell(estimate: Estimate, n_runs: int, unit: formatting.Unit) -> Cell:
    if n_runs == 0:
        return Cell(text="0 ok runs", detail="in this cell", tone="quiet")
    if estimate.value is None:
        return Cell(text=formatting.DASH, detail=f"not measured, n = {n_runs}", tone="quiet")
    details = (formatting.interval(estimate, unit), f"n = {estimate.n}")
    return Cell(
        text=formatting.number(estimate.value, unit), detail=", ".join(filter(None, details))
    )


def cell_ratio_tables(summary: dict[str, Any], *, only: Sequence[str] = _RATIOS) -> list[Table]:
    """Every arm over the reference at each point; the first metric's beside the bounds."""
    points = summary.get("points") or []
    compared = [f"{left}/{right}" for left, right in pairs(list(summary["arms"]))]
    return [
        _ratio_table(summary, points, compared, name)
        for name in only
        if any(entry(point, "ratios", pair, name).n for point in points for pair in compared)
    ]


def _ratio_table(
    summary: dict[str, Any], points: list[dict[str, Any]], compared: list[str], name: str
) -> Table:
    bounded = name == _RATIOS[0] and any(point["limits"] for point in points)
    rows, records = [], []
    for point in points:
        row = [Cell(text=point_label(point))]
        for pair in compared:
            estimate, p = entry(point, "ratios", pair, name), p_value(point, "ratios", pair, name)
            row.append(
                _no_ratio(point, pair)
                if estimate.value is None
                else _with_lack(comparison.ratio_cell(estimate, p=p), point, pair)
            )
            record = {**point["factors"], "ratio": pair, "metric": name, **estimate.as_json()}
            records.append(record | {"p_value": p} | _limit_record(point, pair, bounded))
        rows.append(row + (_limit_cells(point) if bounded else []))
    bounds = ["Byte bound of fixed-low/dblp", "Pass bound of fixed-low/dblp"] if bounded else []
    label = metrics.describe(name).label
    return Table(
        title=f"{summary['experiment']}: {label}, ratios of paired runs by point of the sweep",
        columns=["Point", *compared, *bounds],
        rows=rows,
        notes=[comparison.RATIO_NOTE, *([_BOUNDS] if bounded else [])],
        records=records,
    )


def _no_ratio(point: dict[str, Any], pair: str) -> Cell:
    empty = [arm for arm in pair.split("/") if not point["arms"][arm]["n_runs"]]
    if empty:
        return Cell(
            text=formatting.DASH, detail=f"0 ok runs of {' and '.join(empty)}", tone="quiet"
        )
    return Cell(text=formatting.DASH, detail="no seed in common", tone="quiet")


def _with_lack(cell: Cell, point: dict[str, Any], pair: str) -> Cell:
    """Say which seeds enter no ratio since their partner is missing."""
    seeds = point["unpaired"].get(pair)
    if not seeds:
        return cell
    word = "seed" if len(seeds) == 1 else "seeds"
    note = f"without {word} {', '.join(map(str, seeds))}: only one arm of the pair has an ok run"
    return replace(cell, note=note)


def _limit_cells(point: dict[str, Any]) -> list[Cell]:
    return [
        Cell(text=formatting.number(point["limits"].get(name)), tone="quiet")
        for name in ("bytes", "passes")
    ]


def _limit_record(point: dict[str, Any], pair: str, bounded: bool) -> dict[str, Any]:
    if not bounded or pair != "fixed-low/dblp":
        return {}
    return {f"{name}_bound": value for name, value in point["limits"].items()}
