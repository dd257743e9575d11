"""Tables of the papers' values beside ours: of one experiment, and of all kept results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from analysis.data.metrics import describe
from analysis.statistics.intervals import ENOUGH_SEEDS, Estimate, paper_reduction, true_reduction
from analysis.summary.lookup import (
    OWN_LIMIT,
    factors_text,
    points,
    published_entries,
    published_range,
)
from analysis.tables import cells
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting

_REDUCTIONS = (
    'The DBLP paper calls baseline / DBLP - 1 a "reduction"; it is a speed-up. The true reduction '
    "is 1 - DBLP / baseline. The table gives both."
)
_NOT_ABSOLUTE = (
    "Models, data, link rates and round-trip times differ from the paper's, most of which are not "
    "published. Ratios can be compared with the paper's; absolute times cannot."
)


def experiment_table(summary: dict[str, Any]) -> Table:
    """Ours, the paper's, and whether the paper's value lies inside our interval."""
    found = list(published_entries(summary))
    notes = [_REDUCTIONS, _NOT_ABSOLUTE]
    if elsewhere := "; ".join(summary.get("published_elsewhere") or []):
        notes.append(
            f"Not compared, since no point of this sweep has their conditions: {elsewhere}."
        )
    return Table(
        title=f"{summary['experiment']}: ours beside the paper's",
        columns=[
            "Quantity",
            "Ours",
            "Paper",
            "Paper's value inside our interval",
            'Paper\'s "reduction": ratio - 1',
            "True reduction: 1 - 1 / ratio",
            "Source",
        ],
        rows=[
            _row(metric, each, factors_text(factors), _without_ok_runs(summary, factors, each))
            for factors, metric, each in found
        ],
        notes=notes,
        records=[factors | _record(metric, each) for factors, metric, each in found],
        numeric=False,
    )


def overview_table(summaries: Sequence[dict[str, Any]]) -> Table:
    """A row per published value of these experiments, at all points that have its conditions.

    Args:
        summaries: of experiments with published values, as `summary.json` holds them.
    """
    return Table(
        title="The paper's values beside ours",
        columns=["The paper's value", "compared", "paper", "ours", "inside our interval"],
        rows=[
            _overview_row(summary["experiment"], entries)
            for summary in summaries
            for entries in _by_published_value(summary)
        ],
        numeric=False,
    )


def paper_text(published: dict[str, Any], unit: formatting.Unit) -> str:
    """The paper's value or range, without the unit."""
    ends = dict.fromkeys(formatting.number(end, unit) for end in published_range(published))
    return formatting.TO.join(ends)


def unit_of(published: dict[str, Any], metric: str = "") -> formatting.Unit:
    """The unit in which a published value is printed."""
    if published["compared"].startswith("ratio"):
        return formatting.RATIO
    return formatting.Unit("", decimals=4) if metric == "perplexity" else formatting.POINTS


def _without_ok_runs(
    summary: dict[str, Any], factors: dict[str, Any], published: dict[str, Any]
) -> list[str]:
    """The arms of a comparison that have no ok run at its point of the sweep."""
    parts = [summary, *points(summary)]
    arms = next(part["arms"] for part in parts if part.get("factors", {}) == factors)
    _, _, compared = published["compared"].partition(" ")
    pairs = [
        pair
        for pair in itertools.permutations(arms, 2)
        if compared in ("/".join(pair), "-".join(pair))
    ]
    return [arm for pair in pairs for arm in pair if not arms[arm]["n_runs"]]


def _row(
    metric: str, published: dict[str, Any], point: str, without_ok_runs: Sequence[str]
) -> list[Cell]:
    ours = Estimate(**published["ours"])
    kind, _, compared = published["compared"].partition(" ")
    unit = unit_of(published, metric)
    both = " and ".join(formatting.number(v, unit) for v in published.get("values", {}).values())
    label = describe(metric).label
    if metric == "accuracy" and kind != "ratio":
        label += " (points)"
    source = f"{published['source']} [{published['confidence']}]"
    reductions = kind == "ratio" and published["confidence"] != OWN_LIMIT
    return [
        Cell(
            text=published["title"],
            detail=formatting.joined(f"ours at {point}" if point else "", compared, label),
        ),
        _ours(metric, ours, unit, without_ok_runs),
        Cell(
            text=paper_text(published, unit), detail=formatting.joined(both, published["condition"])
        ),
        _inside(ours, published),
        *(
            _reduction(definition, ours.value, *published_range(published))
            if reductions
            else cells.missing()
            for definition in (paper_reduction, true_reduction)
        ),
        Cell(text=source, detail=published["version"]),
    ]


def _ours(
    metric: str, ours: Estimate, unit: formatting.Unit, without_ok_runs: Sequence[str]
) -> Cell:
    if ours.value is not None:
        return cells.measured(ours, unit)
    few = metric.endswith((".p95", ".p99"))
    why = "too few rounds per run for this quantile" if few else "not measured in this experiment"
    if without_ok_runs:
        why = f"no ok run of {' and '.join(without_ok_runs)}"
    return Cell(text=formatting.DASH, note=why)


def _inside(ours: Estimate, published: dict[str, Any]) -> Cell:
    low, high = published_range(published)
    if ours.value is None:
        return cells.missing()
    side = "ours is lower" if ours.value < low else "ours is higher" if ours.value > high else ""
    if published["confidence"] == OWN_LIMIT:  # nothing to agree or disagree with
        return Cell(text="a limit", detail=side, tone="quiet")
    if published["inside_our_interval"] is None:
        return Cell(text="no interval", detail=formatting.joined(f"n = {ours.n}", side))
    few = f"indicative: n = {ours.n}" if ours.n < ENOUGH_SEEDS else ""
    if published["inside_our_interval"]:
        overlap = "" if low == high else "the ranges overlap"
        return Cell(text="yes", detail=formatting.joined(overlap, few), tone="" if few else "good")
    return Cell(text="no", detail=formatting.joined(side, few), tone="" if few else "bad")


def _reduction(
    definition: Callable[[float], float], ours: float | None, low: float, high: float
) -> Cell:
    """Ours by one definition, and the paper's value or range by the same one."""
    papers = " to ".join(formatting.percent(definition(end)) for end in dict.fromkeys((low, high)))
    text = formatting.percent(definition(ours)) if ours else formatting.DASH
    return Cell(text=text, detail=f"paper: {papers}")


def _record(metric: str, published: dict[str, Any]) -> dict[str, Any]:
    ours = published["ours"]
    low, high = published_range(published)
    record = {
        "id": published["id"],
        "metric": metric,
        "compared": published["compared"],
        **{f"ours_{name}": ours[name] for name in ("value", "low", "high", "n")},
        "paper_low": low,
        "paper_high": high,
        "inside_our_interval": published["inside_our_interval"],
    }
    if published["compared"].startswith("ratio"):
        if ours["value"]:
            record["ours_paper_reduction"] = paper_reduction(ours["value"])
            record["ours_true_reduction"] = true_reduction(ours["value"])
        for end, ratio in (("low", low), ("high", high)):
            record[f"paper_{end}_paper_reduction"] = paper_reduction(ratio)
            record[f"paper_{end}_true_reduction"] = true_reduction(ratio)
    names = ("condition", "source", "confidence", "version")
    return record | {name: published[name] for name in names}


def _by_published_value(summary: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The comparisons of an experiment that have a value of ours, grouped by the paper's value."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for _, metric, each in published_entries(summary):
        if each["confidence"] != OWN_LIMIT and each["ours"].get("value") is not None:
            found.setdefault(each["id"], {}).setdefault(metric, []).append(each)
    # An entry may be meant in several ways (`also`); the first is what its words say.
    return [next(iter(by_metric.values())) for by_metric in found.values()]


def _overview_row(experiment: str, entries: Sequence[dict[str, Any]]) -> list[Cell]:
    first = entries[0]
    unit = unit_of(first)
    inside = sum(bool(each["inside_our_interval"]) for each in entries)
    alone = len(entries) == 1
    return row(
        Cell(text=f"{first['source']}: {first['title']}", detail=experiment),
        first["compared"].split(" ", 1)[1],
        f"{paper_text(first, unit)} {unit.symbol}",
        _our_range([Estimate(**each["ours"]) for each in entries], unit),
        ("yes" if inside else "no") if alone else f"{inside} of {len(entries)}",
    )


def _our_range(estimates: Sequence[Estimate], unit: formatting.Unit) -> Cell:
    values = [each.value for each in estimates if each.value is not None]
    low, high = formatting.number(min(values), unit), formatting.number(max(values), unit)
    if len(estimates) == 1:
        text, detail = low, formatting.brackets(estimates[0], unit).strip("()")
    else:
        seeds = min(each.n for each in estimates)
        text, detail = (
            formatting.between(low, high),
            f"{len(values)} points, n = {seeds} seeds each",
        )
    return Cell(text=f"{text} {unit.symbol}", detail=detail)
