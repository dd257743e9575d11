"""Tables of a sweep: a metric by arm or ratios of arms at each point, and how ratios change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from analysis import formatting
from analysis.data.metrics import describe, in_table
from analysis.statistics import Estimate, holm
from analysis.summary.document import CONTRASTED
from analysis.summary.lookup import (
    bounded_metric,
    entry,
    factors_text,
    p_value,
    points,
    ratio_names,
)
from analysis.tables import by_arm, rendering
from analysis.tables.rendering import Cell, Table, row, table_of, transposed

_MANY_ARMS = 9  # do not stand beside each other in a page
_BOUNDED = "fixed-low/dblp"  # whose ratio a point's limits are about
_LIMITS = {"bytes": "byte_bound", "passes": "pass_limit"}
_BOUNDS = (
    "Byte bound and pass limit are those of a transfer outside critical phases that the burst hits "
    "from end to end. Byte bound, if only bytes cost time: (1 - low) / (1 - high). Pass limit, if "
    "only passes cost time, each as far as it is walked (expected; few chunks lie around it): "
    "N(low) / N(high) with N(P) = n - 1 + (1 - P / q^(n - 1)) / (1 - q), n = ceil(ln P / ln q). "
    "Here low and high are the tolerances of fixed-low and dblp, and q is the loss."
)


def metric_tables(
    summary: dict[str, Any], *, only: Sequence[str] = in_table("points")
) -> list[Table]:
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
    places = [(point, arm) for point in points(summary) for arm in summary["arms"]]
    values = [entry(point, "arms", arm, name).value for point, arm in places]
    label, unit = formatting.metric_unit(name, values)

    def of_arm(arm: str) -> Callable[[dict[str, Any]], Cell]:
        return lambda point: _cell(
            entry(point, "arms", arm, name), point["arms"][arm]["n_runs"], unit
        )

    title = f"{summary['experiment']}: {label}, by "
    table = table_of(
        f"{title}point of the sweep",
        {
            "Point": lambda point: factors_text(point["factors"]),
            **{arm: of_arm(arm) for arm in summary["arms"]},
        },
        points(summary),
        notes=[
            "Each number is a mean over n seeds, with its 95 % interval (Student's t) or, where "
            "there is none, the seeds' values."
        ],
        records=[
            {**point["factors"], "arm": arm, "metric": name, "unit": describe(name).unit}
            | entry(point, "arms", arm, name).as_json()
            for point, arm in places
        ],
    )
    if len(summary["arms"]) < _MANY_ARMS:
        return table
    turned = transposed(table)
    columns = ["Arm", *turned.columns[1:]]
    return replace(turned, title=f"{title}arm", columns=columns, records=table.records)


def _cell(estimate: Estimate, n_runs: int, unit: formatting.Unit) -> Cell:
    if n_runs == 0:
        return Cell(text="0 ok runs", detail="at this point", tone="quiet")
    if estimate.value is None:
        return rendering.missing(detail=f"not measured, n = {n_runs}")
    return rendering.measured(estimate, unit)


def ratio_tables(summary: dict[str, Any], *, only: Sequence[str] = CONTRASTED) -> list[Table]:
    """Every arm over the reference at each point; the gather's in bursts beside the bounds."""
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
    bounded = name == bounded_metric(summary) and any(point["limits"] for point in points(summary))
    parts = points(summary)
    uncorrected = [p_value(part, "ratios", pair, name) for part in parts for pair in compared]
    p_values = iter(holm(uncorrected))
    rows, records = [], []
    for point in parts:
        shown = row(factors_text(point["factors"]))
        for pair in compared:
            estimate, p = entry(point, "ratios", pair, name), next(p_values)
            shown.append(_ratio(point, pair, estimate, p))
            record = {**point["factors"], "ratio": pair, "metric": name, **estimate.as_json()}
            record["p_value"] = p_value(point, "ratios", pair, name)
            record["p_value_corrected"] = p
            if bounded and pair == _BOUNDED:
                record |= {_LIMITS[key]: value for key, value in point["limits"].items()}
                limits = [point["limits"].get(bound) for bound in _LIMITS]
                shown += [Cell(text=formatting.number(limit), tone="quiet") for limit in limits]
            records.append(record)
        rows.append(shown)
    columns = ["Point"]
    for pair in compared:
        columns.append(pair)
        if bounded and pair == _BOUNDED:
            columns += [f"Byte bound of {pair}", f"Pass limit of {pair}"]
    return Table(
        title=f"{summary['experiment']}: {describe(name).label}, ratios of paired runs by point of "
        "the sweep",
        columns=columns,
        rows=rows,
        notes=[by_arm.NOTE, *([_BOUNDS] if bounded else [])],
        records=records,
    )


def _ratio(point: dict[str, Any], pair: str, estimate: Estimate, p: float | None) -> Cell:
    """The ratio, or why there is none; a note says which seeds lack their partner."""
    if estimate.value is None:
        empty = [arm for arm in pair.split("/") if not point["arms"][arm]["n_runs"]]
        why = f"0 ok runs of {' and '.join(empty)}" if empty else "no seed in common"
        if pair in point.get("no_pairs", {}):
            why = "no seed in common on one machine with the same code"
        return rendering.missing(detail=why)
    cell = rendering.ratio(estimate, p=p)
    if left_out := formatting.left_out(point, pair):
        return replace(cell, note="; ".join(f"without {seeds}: {why}" for seeds, why in left_out))
    return cell


_CONTRAST_NOTE = (
    "Each number is the ratio at the second point over the ratio at the first, as a geometric mean "
    "over the seeds that have both: above 1 the ratio grows. Beside it are its 95 % interval "
    "(Student's t on the logarithms), n, and the p-value of no change, corrected for all contrasts "
    "of this table (Holm)."
)


def contrast_table(summary: dict[str, Any]) -> Table:
    """Of the first metric that has any: a row per pair of neighbours, a column per ratio."""
    contrasts = summary.get("contrasts") or []
    compared = ratio_names(summary)
    shown = next(
        (
            metric
            for metric in CONTRASTED
            if any(
                entry(contrast, "ratios", pair, metric).n
                for contrast in contrasts
                for pair in compared
            )
        ),
        CONTRASTED[0],
    )
    rows, records = [], []
    for contrast in contrasts:
        ends = {end: factors_text(contrast[end]) for end in ("from", "to")}
        line = row(*ends.values())
        for pair in compared:
            estimate = entry(contrast, "ratios", pair, shown)
            p = p_value(contrast, "ratios", pair, shown, "p_value_corrected")
            line.append(rendering.ratio(estimate, p=p) if estimate.n else rendering.missing())
            known = {"ratio": pair, "metric": shown, **estimate.as_json(), "p_value_corrected": p}
            records.append(ends | known)
        rows.append(line)
    return Table(
        title=f"{summary['experiment']}: {describe(shown).label}, how ratios change between "
        "neighbouring points",
        columns=["From", "To", *compared],
        rows=rows,
        notes=[_CONTRAST_NOTE],
        records=records,
    )
