"""Tables of the papers' values beside ours: of one experiment, and of all kept results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis import formatting
from analysis.data.metrics import TASK_METRICS, describe
from analysis.statistics import Estimate, paper_reduction, true_reduction
from analysis.summary.lookup import OWN_LIMIT, factors_text, published_entries
from analysis.summary.published import ANY_MODEL, NOT_STATED, load_models
from analysis.tables import rendering
from analysis.tables.rendering import Cell, Table, row

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
_NOT_MEASURED = "not measured by both in ok runs"
_TOO_FEW = "too few rounds per run for this quantile"
_NOT_ABSOLUTE = (
    "Models, data, link rates and round-trip times differ from the paper's, most of which are not "
    "published. Ratios can be compared with the paper's; absolute times cannot."
)


class _Beside:
    """A published value beside ours; `entry` is one of the summary."""

    def __init__(self, factors: dict[str, Any], metric: str, entry: dict[str, Any]) -> None:
        self.factors, self.metric, self.entry = factors, metric, entry
        self.ours = Estimate.of_json(entry["ours"])
        self.verdict: str | None = entry["verdict"]
        kind, _, self.compared = entry["compared"].partition(" ")
        self.is_ratio = kind == "ratio"
        self.is_limit = entry["confidence"] == OWN_LIMIT
        self.is_quantile = metric.endswith((".p95", ".p99"))
        self.unit = formatting.POINTS
        if self.is_ratio:
            self.unit = formatting.RATIO
        elif metric == "perplexity":
            self.unit = formatting.Unit("", decimals=4)
        single = "value" in entry
        self.low, self.high = (entry["value" if single else end] for end in ("low", "high"))
        ends = (formatting.number(end, self.unit) for end in (self.low, self.high))
        self.paper = formatting.TO.join(dict.fromkeys(ends))


def _beside(summary: dict[str, Any]) -> list[_Beside]:
    return [_Beside(*published_entry) for published_entry in published_entries(summary)]


def experiment_table(summary: dict[str, Any]) -> Table:
    notes, values = [_RULE, _REDUCTIONS, _NOT_ABSOLUTE], _beside(summary)
    if elsewhere := "; ".join(summary.get("published_elsewhere") or []):
        notes.append(
            f"Not compared, since no point of this sweep has their conditions: {elsewhere}."
        )
    records = []
    for value in values:
        texts = {name: text for name, text in value.entry.items() if isinstance(text, str)}
        ours = {f"ours_{name}": value.entry["ours"][name] for name in ("value", "low", "high", "n")}
        paper = {"paper_low": value.low, "paper_high": value.high}
        records.append(value.factors | {"metric": value.metric} | ours | paper | texts)
    return Table(
        title=f"{summary['experiment']}: ours beside the paper's",
        columns=[
            *("Quantity", "Ours", "Paper", "Reproduced?", 'Paper\'s "reduction": ratio - 1'),
            *("True reduction: 1 - 1 / ratio", "Source"),
        ],
        rows=list(map(_row, values)),
        notes=notes,
        records=records,
        numeric=False,
    )


def _row(value: _Beside) -> list[Cell]:
    entry, unit, ours = value.entry, value.unit, value.ours
    both = " and ".join(formatting.number(v, unit) for v in entry.get("values", {}).values())
    label = describe(value.metric).label
    if value.metric == "accuracy" and not value.is_ratio:
        label += " (points)"
    paper_model, our_model = _models([value])
    if paper_model in entry["condition"]:
        paper_model = ""
    our_cell, reproduced, side = rendering.missing(note=_NOT_MEASURED), rendering.missing(), ""
    if ours.value is not None:
        our_cell = rendering.measured(ours, unit)
        our_cell = replace(our_cell, detail=formatting.joined(our_model, our_cell.detail))
        side = "ours is lower" if ours.value < value.low else side
        side = "ours is higher" if ours.value > value.high else side
        text = "a limit" if value.is_limit else value.verdict or "no margin stated"
        reproduced = Cell(text=text, detail=side, tone=_TONES.get(text, "quiet"))
    elif value.is_quantile:
        our_cell = rendering.missing(note=_TOO_FEW)
    reductions = [rendering.missing()] * 2
    if value.is_ratio and not value.is_limit:
        reductions = []
        for definition in (paper_reduction, true_reduction):
            ends = dict.fromkeys((value.low, value.high))
            papers = " to ".join(formatting.percent(definition(end)) for end in ends)
            text = formatting.percent(definition(ours.value)) if ours.value else formatting.DASH
            reductions.append(Cell(text=text, detail=f"paper: {papers}"))
    where = f"ours at {factors_text(value.factors)}" if value.factors else ""
    return [
        Cell(text=entry["title"], detail=formatting.joined(where, value.compared, label)),
        our_cell,
        Cell(text=value.paper, detail=formatting.joined(both, paper_model, entry["condition"])),
        reproduced,
        *reductions,
        Cell(text=f"{entry['source']} [{entry['confidence']}]", detail=entry["version"]),
    ]


def _models(entries: Sequence[_Beside]) -> tuple[str, str]:
    """The paper's models and ours; two empty texts where they are the same."""
    paper = entries[0].entry["model"]
    ours = list(dict.fromkeys(name for entry in entries for name in entry.entry["our_model"]))
    names = load_models()
    if paper == [ANY_MODEL] or (ours and {names.get(name, name) for name in paper} == set(ours)):
        return "", ""
    return "model not stated" if paper == [NOT_STATED] else " and ".join(paper), " and ".join(ours)


def overview_table(summaries: Sequence[dict[str, Any]]) -> Table:
    return Table(
        title="The paper's values beside ours",
        columns=["The paper's value", "compared", "paper", "ours", "reproduced?"],
        rows=[
            _overview_row(summary["experiment"], entries)
            for summary in summaries
            for entries in _by_published_value(summary)
        ],
        numeric=False,
    )


def _by_published_value(summary: dict[str, Any]) -> list[list[_Beside]]:
    """The comparisons that have a value of ours, by the paper's value and, if learnt, our model."""
    # An entry may be meant in several ways. The first is what its words say, also where too few
    # rounds give no such quantile: another must not stand in for it unsaid.
    first: dict[str, str] = {}  # metric by id
    groups: dict[tuple[str, ...], list[_Beside]] = {}
    for value in _beside(summary):
        name = value.entry["id"]
        if not value.is_limit and value.metric == first.setdefault(name, value.metric):
            model = value.entry["our_model"] if value.metric in TASK_METRICS else ()
            groups.setdefault((name, *model), []).append(value)
    order = list(first)
    return [
        entries
        for (name, *_), entries in sorted(
            groups.items(), key=lambda group: order.index(group[0][0])
        )
        if entries[0].is_quantile or any(entry.ours.value is not None for entry in entries)
    ]


def _overview_row(experiment: str, entries: Sequence[_Beside]) -> list[Cell]:
    first, unit = entries[0], entries[0].unit
    paper_model, our_model = _models(entries)
    values = [entry.ours.value for entry in entries if entry.ours.value is not None]
    ours = Cell(text=formatting.DASH, detail=_TOO_FEW)
    verdicts = formatting.DASH
    if values:
        low, high = formatting.number(min(values), unit), formatting.number(max(values), unit)
        text, detail = low, formatting.brackets(first.ours, unit).strip("()")
        counts = Counter(entry.verdict or "no margin stated" for entry in entries)
        verdicts = next(iter(counts))
        if len(entries) > 1:
            text = formatting.between(low, high)
            seeds = min(entry.ours.n for entry in entries)
            detail = f"{len(values)} points, n = {seeds} seeds each"
            verdicts = ", ".join(f"{name} at {n} of {len(entries)}" for name, n in counts.items())
        ours = Cell(text=f"{text} {unit.symbol}", detail=formatting.joined(our_model, detail))
    return row(
        Cell(text=f"{first.entry['source']}: {first.entry['title']}", detail=experiment),
        first.compared,
        Cell(text=f"{first.paper} {unit.symbol}", detail=paper_model),
        ours,
        verdicts,
    )
