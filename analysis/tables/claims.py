"""Tables of what papers claim beside ours: of one experiment, and of all kept results."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from analysis import formatting
from analysis.data.metrics import TASK_METRICS, describe
from analysis.statistics import (
    ENOUGH_SEEDS,
    Estimate,
    Verdict,
    holm,
    smallest_seen,
)
from analysis.summary import claims
from analysis.summary.claims import ANY_MODEL, NOT_STATED, Claim, load_models
from analysis.summary.lookup import OWN_LIMIT, factors_text, published_entries
from analysis.tables import rendering
from analysis.tables.rendering import Cell, Table, row

_REDUCTIONS = 'The DBLP paper calls a ratio less 1 a "reduction": 1.25 is one of 25 %.'
_TONES = {"confirmed": "good", "contradicted": "bad", "holds on our tasks only": ""}
_RULE = (
    "A gain is confirmed where our 95 % interval begins above four fifths of what is claimed, with "
    "its models and data. It holds on our tasks only where it may be as large, with others. It is "
    "contradicted where it is smaller for certain, or opposite. No effect is seen where there may "
    "be none. A cost is confirmed, or holds on our tasks only, where it is no larger than claimed "
    "and a margin; it is contradicted where it is larger. Not tested: fewer than five seeds, or an "
    "interval on both sides of that limit."
)
_UNTESTED = "not tested"
_VERDICTS = (*(v for v in get_args(Verdict) if v != _UNTESTED), "mixed", _UNTESTED)
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
        self.verdict: str = entry["verdict"]
        kind, _, self.compared = entry["compared"].partition(" ")
        self.is_ratio = kind == "ratio"
        self.is_limit = entry["confidence"] == OWN_LIMIT
        self.is_quantile = metric.endswith((".p95", ".p99"))
        self.unit = formatting.RATIO if self.is_ratio else formatting.POINTS
        single = "value" in entry
        self.low, self.high = (entry.get("value" if single else end) for end in ("low", "high"))
        ends = [
            formatting.number(end, self.unit) for end in (self.low, self.high) if end is not None
        ]
        self.paper = formatting.TO.join(dict.fromkeys(ends))
        if self.high is None:
            self.paper = f"> {self.paper}"


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
        title=f"{summary['experiment']}: ours beside what papers claim",
        columns=["Claim", "Ours", "Paper", "Verdict", "Source"],
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
    our_cell, judged, side = rendering.missing(note=_NOT_MEASURED), rendering.missing(), ""
    if ours.value is not None:
        our_cell = rendering.measured(ours, unit)
        our_cell = replace(our_cell, detail=formatting.joined(our_model, our_cell.detail))
        side = "ours is lower" if value.low is not None and ours.value < value.low else side
        side = "ours is higher" if value.high is not None and ours.value > value.high else side
        text = "a limit" if value.is_limit else value.verdict
        judged = Cell(text=text, detail=side, tone=_TONES.get(text, "quiet"))
    elif value.is_quantile:
        our_cell = rendering.missing(note=_TOO_FEW)
    where = f"ours at {factors_text(value.factors)}" if value.factors else ""
    return [
        Cell(text=entry["title"], detail=formatting.joined(where, value.compared, label)),
        our_cell,
        Cell(text=value.paper, detail=formatting.joined(both, paper_model, entry["condition"])),
        judged,
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


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A kept result, for the page of claims."""

    summary: Mapping[str, Any]
    simulated: bool
    wall_s: Mapping[str, float]  # by arm: of all its runs


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """The comparisons of a claim with a kept result, at each point that has its conditions."""

    kept: Kept
    values: Sequence[_Beside]

    def minutes(self, claim: Claim) -> float:
        return sum(self.kept.wall_s.get(arm, 0.0) for arm in claim.arms) / 60


def comparisons(claim: Claim, kept: Sequence[Kept]) -> list[Comparisons]:
    """Compares a claim with kept results; verdicts are corrected for all its comparisons."""
    groups: list[Comparisons] = []
    for result in kept:
        values = [value for value in _beside(dict(result.summary)) if value.entry["id"] == claim.id]
        # A claim may be meant in several ways. The first is what its words say, also where too few
        # rounds give no such quantile: another must not stand in for it unsaid.
        of_model: dict[tuple[str, ...], list[_Beside]] = {}
        for value in values:
            if value.metric == values[0].metric and value.ours.value is not None:
                model = value.entry["our_model"] if value.metric in TASK_METRICS else ()
                of_model.setdefault(tuple(model), []).append(value)
        groups += [
            Comparisons(kept=result, values=alike)
            for alike in of_model.values()
            if any(value.ours.n >= ENOUGH_SEEDS for value in alike)
        ]
    compared = [value for group in groups for value in group.values]
    corrected = holm([value.entry.get("p_value") for value in compared])
    for value, p_value in zip(compared, corrected, strict=True):
        value.verdict = claims.verdict(claim, value.entry, p_value)
    return groups


def claims_table(kept: Sequence[Kept], ids: Collection[str] = ()) -> Table:
    """A row for each claim, or those named, and kept result that tests it; as a group."""
    rows: list[list[Cell]] = []
    for claim in claims.load():
        if claim.confidence == OWN_LIMIT or (ids and claim.id not in ids):
            continue
        title = Cell(text=f"{claim.id}: {claim.title}", detail=_source(claim))
        groups = comparisons(claim, kept)
        if not groups:
            reason = claim.why or "no experiment of ours"
            rows.append(row(title, _theirs(claim), formatting.DASH, "", _UNTESTED, reason, ""))
        theirs, why = _theirs(claim), Cell(text=claim.why or formatting.DASH)
        minutes = sum(group.minutes(claim) for group in groups)
        replay = Cell(text=f"./lab replay {claim.id}", detail=f"{minutes:.0f} min")
        for group in groups:
            ours, differs = _ours(group.values), _differs(claim, group)
            rows.append(row(title, theirs, ours, differs, _verdicts(group.values), why, replay))
            # What a further result would repeat of its claim is left out.
            title = theirs = replay = why = Cell(text="")
            claim = replace(claim, condition="")
    return Table(
        title="What papers claim",
        columns=["Claim", "Theirs", "Ours", "What differs", "Verdict", "Why", "Command"],
        rows=rows,
        numeric=False,
    )


def verdicts_table(kept: Sequence[Kept]) -> Table:
    """Count the claims of each paper by verdict; one with several is `mixed`."""
    counts: dict[str, dict[str, int]] = {}
    for claim in claims.load():
        if claim.confidence != OWN_LIMIT:
            groups = comparisons(claim, kept)
            verdicts = {value.verdict for group in groups for value in group.values} - {_UNTESTED}
            verdict = verdicts.pop() if len(verdicts) == 1 else "mixed" if verdicts else _UNTESTED
            of_paper = counts.setdefault(claim.paper, dict.fromkeys(_VERDICTS, 0))
            of_paper[verdict] += 1
    rows = [
        row(paper, str(sum(of_paper.values())), *(str(count or "") for count in of_paper.values()))
        for paper, of_paper in counts.items()
    ]
    return Table(title="", columns=["Paper", "Claims", *_VERDICTS], rows=rows)


def _source(claim: Claim) -> str:
    hand = "first hand" if claim.confidence in ("CODE", "FULL") else "second hand"
    of_abstract = claim.confidence == "ABS"
    return formatting.joined(claim.paper, claim.source, "" if of_abstract else hand)


def _theirs(claim: Claim) -> Cell:
    unit = formatting.RATIO if claim.section == "ratios" else formatting.POINTS
    low, high = claim.ends
    ends = [formatting.number(end, unit) for end in (low, high) if math.isfinite(end)]
    text = f"{formatting.between(ends[0], ends[-1])} {unit.symbol}"
    if len(set(ends)) == 1:
        text = f"{ends[0]} {unit.symbol}"
    if not math.isfinite(high):
        text = f"> {text}"
    if claim.rule == "cost":
        margin = formatting.number(claim.margin, unit)
        return Cell(text=text, detail=f"at most, and {margin} {unit.symbol} of margin")
    return Cell(text=text)


def _ours(values: Sequence[_Beside]) -> Cell:
    measured = [value for value in values if value.ours.value is not None]
    first = measured[0]
    if len(measured) == 1:
        cell = rendering.measured(first.ours, first.unit)
        return replace(cell, text=f"{cell.text} {first.unit.symbol}")
    ends = [value.ours.value for value in measured if value.ours.value is not None]
    low, high = (formatting.number(end, first.unit) for end in (min(ends), max(ends)))
    seeds = min(value.ours.n for value in measured)
    text = f"{formatting.between(low, high)} {first.unit.symbol}"
    return Cell(text=text, detail=f"{len(measured)} points, n = {seeds} each")


def _differs(claim: Claim, group: Comparisons) -> Cell:
    """The models, data and conditions, ours before theirs."""
    models, datasets = (
        list(dict.fromkeys(name for value in group.values for name in value.entry[key]))
        for key in ("our_model", "our_dataset")
    )
    learns = not all(name.startswith("payload of") for name in models)
    ours = " and ".join(models) + (f" on {' and '.join(datasets)}" if learns and datasets else "")
    place = "simulated" if group.kept.simulated else "in the lab"
    ours = formatting.joined(ours, place)
    theirs = f"theirs: {claim.condition}" if claim.condition else ""
    return Cell(text=f"ours: {ours}", detail=theirs)


def _verdicts(values: Sequence[_Beside]) -> Cell:
    counts: dict[str, int] = {}
    for value in values:
        counts[value.verdict] = counts.get(value.verdict, 0) + 1
    text = ", ".join(
        verdict + (f" at {count} of {len(values)}" if counts.keys() - {verdict} else "")
        for verdict, count in counts.items()
    )
    unseen = [smallest_seen(value.ours) for value in values if value.verdict == "no effect seen"]
    sizes = [size for size in unseen if size is not None]
    detail = ""
    if sizes:
        unit = values[0].unit
        detail = f"{formatting.number(max(sizes), unit)} {unit.symbol} would have been"
    return Cell(text=text, detail=detail)
