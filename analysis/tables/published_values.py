"""Tables of the papers' values beside ours: of one experiment, and of all kept results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
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
    """Ours, the paper's, and whether ours reproduces it."""
    notes = [_RULE, _REDUCTIONS, _NOT_ABSOLUTE]
    if elsewhere := "; ".join(summary.get("published_elsewhere") or []):
        notes.append(
            f"Not compared, since no point of this sweep has their conditions: {elsewhere}."
        )
    return Table(
        title=f"{summary['experiment']}: ours beside the paper's",
        columns=[
            *("Quantity", "Ours", "Paper", "Reproduced?", 'Paper\'s "reduction": ratio - 1'),
            *("True reduction: 1 - 1 / ratio", "Source"),
        ],
        rows=list(map(_row, _beside(summary))),
        notes=notes,
        records=[each.factors | _record(each) for each in _beside(summary)],
        numeric=False,
    )


def _row(each: _Beside) -> list[Cell]:
    entry, unit = each.entry, each.unit
    both = " and ".join(formatting.number(v, unit) for v in entry.get("values", {}).values())
    label = describe(each.metric).label
    if each.metric == "accuracy" and not each.is_ratio:
        label += " (points)"
    paper_model, our_model = _models([each])
    if paper_model in entry["condition"]:
        paper_model = ""
    if each.ours.value is not None:
        ours = rendering.measured(each.ours, unit)
        ours = replace(ours, detail=formatting.joined(our_model, ours.detail))
    else:
        note = _TOO_FEW if each.is_quantile else "not measured by both in ok runs"
        ours = rendering.missing(note=note)
    where = f"ours at {factors_text(each.factors)}" if each.factors else ""
    paper = formatting.joined(both, paper_model, entry["condition"])
    return [
        Cell(text=entry["title"], detail=formatting.joined(where, each.compared, label)),
        ours,
        Cell(text=each.paper, detail=paper),
        _reproduced(each),
        *(_reduction(each, definition) for definition in (paper_reduction, true_reduction)),
        Cell(text=f"{entry['source']} [{entry['confidence']}]", detail=entry["version"]),
    ]


def _reproduced(each: _Beside) -> Cell:
    ours = each.ours
    if ours.value is None:
        return rendering.missing()
    side = "ours is lower" if ours.value < each.low else ""
    side = "ours is higher" if ours.value > each.high else side
    if each.is_limit:  # nothing to agree or disagree with
        return Cell(text="a limit", detail=side, tone="quiet")
    if each.verdict is None:
        return Cell(text="no margin stated", detail=side, tone="quiet")
    return Cell(text=each.verdict, detail=side, tone=_TONES.get(each.verdict, "quiet"))


def _reduction(each: _Beside, definition: Callable[[float], float]) -> Cell:
    """Ours by one definition, and the paper's value or range by the same one."""
    if not each.is_ratio or each.is_limit:
        return rendering.missing()
    ends = dict.fromkeys((each.low, each.high))
    papers = " to ".join(formatting.percent(definition(end)) for end in ends)
    ours = each.ours.value
    text = formatting.percent(definition(ours)) if ours else formatting.DASH
    return Cell(text=text, detail=f"paper: {papers}")


def _record(each: _Beside) -> dict[str, Any]:
    texts = {name: text for name, text in each.entry.items() if isinstance(text, str)}
    ours = {f"ours_{name}": each.entry["ours"][name] for name in ("value", "low", "high", "n")}
    return {"metric": each.metric, **ours, "paper_low": each.low, "paper_high": each.high} | texts


def _models(entries: Sequence[_Beside]) -> tuple[str, str]:
    """The paper's models and ours; two empty texts where they are the same."""
    paper = entries[0].entry["model"]
    ours = list(dict.fromkeys(name for entry in entries for name in entry.entry["our_model"]))
    names = load_models()
    if paper == [ANY_MODEL] or (ours and {names.get(name, name) for name in paper} == set(ours)):
        return "", ""
    return "model not stated" if paper == [NOT_STATED] else " and ".join(paper), " and ".join(ours)


def overview_table(summaries: Sequence[dict[str, Any]]) -> Table:
    """A row per published value of these experiments, at all points that have its conditions."""
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
    for each in _beside(summary):
        name = each.entry["id"]
        if not each.is_limit and each.metric == first.setdefault(name, each.metric):
            model = each.entry["our_model"] if each.metric in TASK_METRICS else ()
            groups.setdefault((name, *model), []).append(each)
    order = list(first)
    return [
        entries
        for (name, *_), entries in sorted(groups.items(), key=lambda each: order.index(each[0][0]))
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
