"""The comparison tables: arm against arm, and our ratios beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from analysis.data import metrics
from analysis.statistics.intervals import ENOUGH_SEEDS, Estimate, paper_reduction, true_reduction
from analysis.summary.summary import entry, p_value, pairs
from analysis.tables.model import Cell, Table
from analysis.words import formatting

REDUCTIONS = (
    'What the DBLP paper calls a "reduction" is baseline / DBLP - 1, a speed-up; the true '
    "reduction is 1 - DBLP / baseline. Both are given."
)
_RATIOS = (
    "round_latency_s.burst_mean",
    metrics.IMPAIRED,  # one row per kind of impairment, where there are several
    "round_latency_s.calm_mean",
    "round_latency_s.mean",
    "round_latency_s.p95",
    "round_latency_s.p99",
    "round_latency_s.max",
    "training_time_s",
    "time_to_target_s",
    "bytes_sent",
)
RATIO_NOTE = (
    "A ratio is that of the means over the seeds that both arms have; with its 95 % interval "
    "(seeds resampled in pairs), the number of pairs and the p-value of the paired permutation "
    f"test, which {ENOUGH_SEEDS} pairs cannot bring below {2 / 2**ENOUGH_SEEDS:.3f}."
)
_DIFFERENCES = {
    "accuracy": "Final test accuracy, difference (points)",
    "perplexity": "Final perplexity, difference (above 0 the reference is better)",
}
_LIMIT = "DERIVED"  # the confidence of our own arithmetic: a limit, not a result of the paper


def ratio_table(summary: dict[str, Any]) -> Table:
    """Every arm over the reference arm, paired by seed; above 1 the reference is better."""
    compared = pairs(list(summary["arms"]))
    names = [f"{left}/{right}" for left, right in compared]
    rows, shown = [], []
    for metric in metrics.expand(_RATIOS, summary["arms"]):
        estimates = [entry(summary, "ratios", name, metric) for name in names]
        if any(each.value is not None for each in estimates):  # the main table says why it is not
            label = metrics.describe(metric).label
            tests = [p_value(summary, "ratios", name, metric) for name in names]
            rows.append([Cell(text=label), *_cells(estimates, tests)])
            shown.append(metric)
    task = summary.get("task_metric")
    if task:
        differences = [f"{left}-{right}" for left, right in compared]
        rows.append(
            [
                Cell(text=_DIFFERENCES[task]),
                *_cells(
                    [entry(summary, "differences", name, task) for name in differences],
                    [p_value(summary, "differences", name, task) for name in differences],
                    formatting.POINTS if task == "accuracy" else formatting.RATIO,
                ),
            ]
        )
    return Table(
        title=f"{summary['experiment']}: ratios of paired runs",
        columns=["", *names],
        rows=rows,
        notes=[RATIO_NOTE, *_difference_note(task), *_unpaired(summary)],
        records=[
            {"ratio": name, "metric": metric, **entry(summary, "ratios", name, metric).as_json()}
            | {"p_value": p_value(summary, "ratios", name, metric)}
            for name in names
            for metric in shown
        ],
    )


def _cells(
    estimates: Sequence[Estimate],
    tests: Sequence[float | None],
    unit: formatting.Unit = formatting.RATIO,
) -> list[Cell]:
    return [ratio_cell(each, unit, p=p) for each, p in zip(estimates, tests, strict=True)]


def _difference_note(task: str | None) -> list[str]:
    if task is None:
        return []
    return [f"The {task} is compared by difference: first minus second."]


def _unpaired(summary: dict[str, Any]) -> list[str]:
    """Which seeds enter no ratio since only one arm of the pair has an ok run."""
    return [
        f"{pair}: seed {', '.join(map(str, seeds))} has an ok run of one arm only (at some point "
        "of the sweep) and is left out there."
        if summary.get("points")
        else f"{pair}: seed {', '.join(map(str, seeds))} has an ok run of one arm only and is "
        "left out."
        for pair, seeds in summary.get("unpaired", {}).items()
    ]


def paper_table(summary: dict[str, Any]) -> Table:
    """Ours, the paper's, and whether the paper's value lies inside our interval."""
    rows, records = [], []
    places: list[tuple[dict[str, Any], dict[str, Any]]] = [(summary, {})]
    places += [(point, point["factors"]) for point in summary.get("points") or []]
    for place, factors in places:
        where = ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in factors.items())
        for metric, entries in place["published"].items():
            for published in entries:
                rows.append(_paper_row(metric, published, where))
                records.append(factors | _paper_record(metric, published))
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
        rows=rows,
        notes=[
            REDUCTIONS,
            "Models, data, link rates and round-trip times differ from the paper's (most of its "
            "own are not published), so ratios can be compared and absolute times cannot.",
            *(
                [
                    "Not compared, since no point of this sweep has their conditions: "
                    + "; ".join(summary["published_elsewhere"])
                    + "."
                ]
                if summary.get("published_elsewhere")
                else []
            ),
        ],
        records=records,
        numeric=False,
    )


def ratio_cell(
    estimate: Estimate, unit: formatting.Unit = formatting.RATIO, *, p: float | None = None
) -> Cell:
    """A ratio or a difference with its interval, the number of pairs and the p-value."""
    if estimate.value is None:
        note = "no pair of ok runs in which both arms have a value above 0"
        return Cell(text=formatting.DASH, note=note, tone="quiet")
    parts = (
        formatting.interval(estimate, unit),
        f"n = {estimate.n}",
        "" if p is None else f"p = {formatting.p_value(p)}",
    )
    return Cell(text=formatting.number(estimate.value, unit), detail=", ".join(filter(None, parts)))


def _paper_row(metric: str, published: dict[str, Any], where: str) -> list[Cell]:
    ours = Estimate(**published["ours"])
    is_ratio = published["compared"].startswith("ratio")
    unit = formatting.RATIO
    if not is_ratio:
        unit = formatting.Unit("", decimals=4) if metric == "perplexity" else formatting.POINTS
    low, high = bounds(published)
    papers = formatting.TO.join(formatting.number(end, unit) for end in dict.fromkeys((low, high)))
    values = published.get("values", {})
    both = " and ".join(formatting.number(value, unit) for value in values.values())
    detail = ", ".join(filter(None, (both, published["condition"])))
    label = metrics.describe(metric).label
    compared = published["compared"].split(" ", 1)[1]
    if metric == "accuracy" and not is_ratio:
        label += " (points)"
    limit = published["confidence"] == _LIMIT
    return [
        Cell(
            text=published["title"],
            detail=", ".join(filter(None, (f"ours at {where}" if where else "", compared, label))),
        ),
        _ours(metric, ours, unit),
        Cell(text=papers, detail=detail),
        _inside(ours, published["inside_our_interval"], low, high, limit=limit),
        *(
            _reduction_cell(definition, ours.value, low, high)
            if is_ratio and not limit
            else Cell(text=formatting.DASH, tone="quiet")
            for definition in (paper_reduction, true_reduction)
        ),
        Cell(
            text=f"{published['source']} [{published['confidence']}]", detail=published["version"]
        ),
    ]


def _ours(metric: str, ours: Estimate, unit: formatting.Unit) -> Cell:
    if ours.value is not None:
        return ratio_cell(ours, unit)
    if metric.endswith((".p95", ".p99")):
        return Cell(text=formatting.DASH, note="too few rounds per run for this quantile")
    return Cell(text=formatting.DASH, note="not measured in this experiment")


def _inside(ours: Estimate, inside: bool | None, low: float, high: float, *, limit: bool) -> Cell:
    if ours.value is None:
        return Cell(text=formatting.DASH, tone="quiet")
    side = "ours is lower" if ours.value < low else "ours is higher" if ours.value > high else ""
    if limit:  # nothing to agree or disagree with
        return Cell(text="a limit", detail=side, tone="quiet")
    if inside is None:
        return Cell(text="no interval", detail=", ".join(filter(None, (f"n = {ours.n}", side))))
    if inside:
        return Cell(text="yes", tone="good", detail="" if low == high else "the ranges overlap")
    return Cell(text="no", tone="bad", detail=side)


def _reduction_cell(
    definition: Callable[[float], float], ours: float | None, low: float, high: float
) -> Cell:
    """Ours by one definition, and the paper's value or range by the same one."""
    papers = " to ".join(formatting.percent(definition(end)) for end in dict.fromkeys((low, high)))
    text = formatting.percent(definition(ours)) if ours else formatting.DASH
    return Cell(text=text, detail=f"paper: {papers}")


def bounds(published: dict[str, Any]) -> tuple[float, float]:
    """The ends of the paper's range; the same twice for a single value."""
    if "value" in published:
        return published["value"], published["value"]
    return published["low"], published["high"]


def _paper_record(metric: str, published: dict[str, Any]) -> dict[str, Any]:
    ours = published["ours"]
    low, high = bounds(published)
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
