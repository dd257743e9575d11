"""Tables of the papers' values beside ours: of one experiment, and of all kept results."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from analysis.data.metrics import TASK_METRICS, describe
from analysis.data.published import ANY_MODEL, NOT_STATED, load_models
from analysis.statistics.intervals import ENOUGH_SEEDS, Estimate, paper_reduction, true_reduction
from analysis.summary.lookup import (
    OWN_LIMIT,
    factors_text,
    points,
    published_entries,
    published_range,
    replicated,
)
from analysis.tables import cells
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting

_REDUCTIONS = (
    'The DBLP paper calls baseline / DBLP - 1 a "reduction"; it is a speed-up. The true reduction '
    "is 1 - DBLP / baseline. The table gives both."
)
_TONES = {"reproduced": "good", "not reproduced": "bad", "undecided": ""}  # others are quiet
_RULE = (
    "Reproduced: our 95 % interval lies within the paper's value or range and a margin of a fifth "
    "of its gain, at most 10 % of the ratio (of accuracies 1 point). Not reproduced: it has "
    "nothing in common with them. Too small to test here: no effect at all lies within the margin, "
    "too. Else, and below five seeds, the data do not decide."
)
_NOT_ABSOLUTE = (
    "Models, data, link rates and round-trip times differ from the paper's, most of which are not "
    "published. Ratios can be compared with the paper's; absolute times cannot."
)


def experiment_table(summary: dict[str, Any]) -> Table:
    """Ours, the paper's, and whether ours reproduces it."""
    found = list(published_entries(summary))
    notes = [_RULE, _REDUCTIONS, _NOT_ABSOLUTE]
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
            "Reproduced?",
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
    """A row per published value of these experiments, at all points that have its conditions."""
    return Table(
        title="The paper's values beside ours",
        columns=["The paper's value", "compared", "paper", "ours", "reproduced?"],
        rows=[
            _overview_row(summary["experiment"], metric, entries)
            for summary in summaries
            for metric, entries in _by_published_value(summary)
        ],
        numeric=False,
    )


def _paper_text(published: dict[str, Any], unit: formatting.Unit) -> str:
    """The paper's value or range, without the unit."""
    ends = dict.fromkeys(formatting.number(end, unit) for end in published_range(published))
    return formatting.TO.join(ends)


def _models(entries: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """The paper's models and ours; two empty texts where they are the same."""
    paper = entries[0]["model"]
    ours = list(dict.fromkeys(name for each in entries for name in each["our_model"]))
    names = load_models()
    if paper == [ANY_MODEL] or (ours and {names.get(name, name) for name in paper} == set(ours)):
        return "", ""
    return "model not stated" if paper == [NOT_STATED] else " and ".join(paper), " and ".join(ours)


def _verdicts_text(metric: str, entries: Sequence[dict[str, Any]]) -> str:
    """What became of one published value at all points that have its conditions."""
    if all(each["ours"].get("value") is None for each in entries):
        return formatting.DASH
    found = Counter(replicated(each, metric) or "no margin stated" for each in entries)
    if len(entries) == 1:
        return next(iter(found))
    return ", ".join(f"{verdict} at {count} of {len(entries)}" for verdict, count in found.items())


def _unit_of(published: dict[str, Any], metric: str = "") -> formatting.Unit:
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
    unit = _unit_of(published, metric)
    both = " and ".join(formatting.number(v, unit) for v in published.get("values", {}).values())
    label = describe(metric).label
    if metric == "accuracy" and kind != "ratio":
        label += " (points)"
    source = f"{published['source']} [{published['confidence']}]"
    reductions = kind == "ratio" and published["confidence"] != OWN_LIMIT
    paper_model, our_model = _models([published])
    if paper_model in published["condition"]:
        paper_model = ""
    return [
        Cell(
            text=published["title"],
            detail=formatting.joined(f"ours at {point}" if point else "", compared, label),
        ),
        _ours(metric, ours, unit, without_ok_runs, our_model),
        Cell(
            text=_paper_text(published, unit),
            detail=formatting.joined(both, paper_model, published["condition"]),
        ),
        _reproduced(metric, ours, published),
        *(
            _reduction(definition, ours.value, *published_range(published))
            if reductions
            else cells.missing()
            for definition in (paper_reduction, true_reduction)
        ),
        Cell(text=source, detail=published["version"]),
    ]


def _ours(
    metric: str,
    ours: Estimate,
    unit: formatting.Unit,
    without_ok_runs: Sequence[str],
    our_model: str,
) -> Cell:
    if ours.value is not None:
        cell = cells.measured(ours, unit)
        return replace(cell, detail=formatting.joined(our_model, cell.detail))
    why = (
        "too few rounds per run for this quantile"
        if _is_quantile(metric)
        else "not measured in this experiment"
    )
    if without_ok_runs:
        why = f"no ok run of {' and '.join(without_ok_runs)}"
    return Cell(text=formatting.DASH, note=why)


def _reproduced(metric: str, ours: Estimate, published: dict[str, Any]) -> Cell:
    low, high = published_range(published)
    if ours.value is None:
        return cells.missing()
    side = "ours is lower" if ours.value < low else "ours is higher" if ours.value > high else ""
    if published["confidence"] == OWN_LIMIT:  # nothing to agree or disagree with
        return Cell(text="a limit", detail=side, tone="quiet")
    verdict = replicated(published, metric)
    if verdict is None:
        return Cell(text="no margin stated", detail=side, tone="quiet")
    few = f"n = {ours.n}" if ours.n < ENOUGH_SEEDS else ""
    tone = _TONES.get(verdict, "quiet")
    return Cell(text=verdict, detail=formatting.joined(few, side), tone=tone)


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
        "verdict": replicated(published, metric),
    }
    if published["compared"].startswith("ratio"):
        if ours["value"]:
            record["ours_paper_reduction"] = paper_reduction(ours["value"])
            record["ours_true_reduction"] = true_reduction(ours["value"])
        for end, ratio in (("low", low), ("high", high)):
            record[f"paper_{end}_paper_reduction"] = paper_reduction(ratio)
            record[f"paper_{end}_true_reduction"] = true_reduction(ratio)
    record |= {name: ", ".join(published[name]) for name in ("model", "our_model")}
    names = ("condition", "source", "confidence", "version")
    return record | {name: published[name] for name in names}


def _by_published_value(
    summary: dict[str, Any],
) -> list[tuple[str, list[dict[str, Any]]]]:
    """The comparisons that have a value of ours, by the paper's value: (metric, comparisons)."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for _, metric, each in published_entries(summary):
        if each["confidence"] != OWN_LIMIT:
            found.setdefault(each["id"], {}).setdefault(metric, []).append(each)
    # An entry may be meant in several ways (`also`). The first is what its words say, also where
    # too few rounds give no such quantile: another one must not stand in for it unsaid.
    firsts = [next(iter(by_metric.items())) for by_metric in found.values()]
    return [
        (metric, of_task)
        for metric, entries in firsts
        for of_task in _by_model(metric, entries)
        if _is_measured(metric, of_task)
    ]


def _by_model(metric: str, entries: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """One published value beside ours, each of our models apart where they learnt something."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in entries:
        model = each["our_model"] if metric in TASK_METRICS else ()
        found.setdefault(tuple(model), []).append(each)
    return list(found.values())


def _is_measured(metric: str, entries: Sequence[dict[str, Any]]) -> bool:
    return _is_quantile(metric) or any(each["ours"].get("value") is not None for each in entries)


def _is_quantile(metric: str) -> bool:
    return metric.endswith((".p95", ".p99"))


def _overview_row(experiment: str, metric: str, entries: Sequence[dict[str, Any]]) -> list[Cell]:
    first = entries[0]
    unit = _unit_of(first, metric)
    paper_model, our_model = _models(entries)
    return row(
        Cell(text=f"{first['source']}: {first['title']}", detail=experiment),
        first["compared"].split(" ", 1)[1],
        Cell(text=f"{_paper_text(first, unit)} {unit.symbol}", detail=paper_model),
        _our_range([Estimate(**each["ours"]) for each in entries], unit, our_model),
        _verdicts_text(metric, entries),
    )


def _our_range(estimates: Sequence[Estimate], unit: formatting.Unit, model: str) -> Cell:
    values = [each.value for each in estimates if each.value is not None]
    if not values:
        return Cell(text=formatting.DASH, detail="too few rounds per run for this quantile")
    low, high = formatting.number(min(values), unit), formatting.number(max(values), unit)
    if len(estimates) == 1:
        text, detail = low, formatting.brackets(estimates[0], unit).strip("()")
    else:
        seeds = min(each.n for each in estimates)
        text, detail = (
            formatting.between(low, high),
            f"{len(values)} points, n = {seeds} seeds each",
        )
    return Cell(text=f"{text} {unit.symbol}", detail=formatting.joined(model, detail))
