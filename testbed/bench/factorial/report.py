"""The factorial's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from analysis.statistics.intervals import CONFIDENCE, Estimate
from analysis.tables.rendering import Cell as Text
from analysis.tables.rendering import Table, row
from analysis.words import formatting
from testbed.bench.factorial.design import CELLS, LINK_LOSS, LOSS, Cell
from testbed.bench.factorial.effects import Effect, Group
from testbed.bench.factorial.findings import Effects, Findings, exponential
from testbed.bench.factorial.rates import BEST, AtRate

_PARTS = {
    "both": "dblp-largest minus dblp",
    "order-without-memory": "of this, order: largest first without memory",
    "memory-largest-first": "... and then memory on both legs",
    "memory-in-order": "or first memory: both legs, in order",
    "order-with-memory": "... and then order: largest first",
}
_POINTS = formatting.Unit("points", decimals=1)
_PERCENT = formatting.Unit("%", 100.0)
_TIMES = formatting.Unit("x", decimals=2)
_MEANS = "Means over the seeds with 95 % intervals (Student's t)."
_PAIRED = (
    "Paired by seed, each cell at its best learning rate. The star: p < 0.05 in a paired t test, "
    "corrected for all of the table (Holm). Intervals are not corrected."
)
_LOST = (
    f"All receivers give up {LOSS * 100:g} % of the chunks on both legs in all rounds; links lose "
    f"{LINK_LOSS * 100:g} % of what is sent before."
)


def tables(found: Findings) -> Iterator[Table]:
    """All for which there are trainings."""
    groups = found.results.groups
    if groups:
        columns = [str(group) for group in groups]
        yield Table(
            title="What of dblp-largest is order, what is memory? Points of accuracy",
            columns=["difference", *columns],
            rows=[
                row(label, *(_effect(found.parts[group, name]) for group in groups))
                for name, label in _PARTS.items()
            ],
            notes=[_MEANS, _PAIRED, _LOST, "Filled with zero."],
        )
        yield Table(
            title="Main effects and interactions, points of accuracy",
            columns=["effect", *columns],
            rows=_effect_rows(found.effects, groups),
            notes=[
                "Against in-order, no memory and zero, averaged over the factors not named; an "
                "interaction is what two levels give together beyond what each gives alone.",
                _PAIRED,
            ],
        )
        yield Table(
            title="Accuracy in each cell, per cent",
            columns=["order, memory, filling", *columns],
            rows=[
                row(_name(cell), *(_accuracy(found, group, cell) for group in groups))
                for cell in (None, *CELLS)
            ],
            notes=[_MEANS, "After the at: the learning rate that most seeds were given."],
        )
        yield Table(
            title="How far the replicas are apart at the end, per cent of the weights' norm",
            columns=["order, memory, filling", *columns],
            rows=[
                row(
                    _name(cell),
                    *(_text(found.divergence(group, cell), _PERCENT) for group in groups),
                )
                for cell in CELLS
            ]
            + _effect_rows(found.drifts, groups, times=True),
            notes=["Geometric means; below them the main effects, as factors.", _PAIRED],
        )
    for group, by_rate in found.rates.items():
        yield _of_rates(group, by_rate)


def _of_rates(group: Group, by_rate: Mapping[str, AtRate]) -> Table:
    return Table(
        title=f"{group}: perplexity by learning rate, the last {LOSS * 100:g} % left out or not",
        columns=["learning rate", "without loss", "left out", "left out / without"],
        rows=[
            row(
                "each side's best" if rate == BEST else rate,
                *(_text(each, formatting.Unit("", decimals=2)) for each in (at.without, at.lossy)),
                _text(at.ratio, formatting.Unit("x", decimals=3)),
            )
            for rate, at in by_rate.items()
        ],
        notes=[
            _MEANS,
            "Ratios are paired by seed; below 1 leaving out is better.",
            "The best rate of a seed is that of the other seeds.",
        ],
    )


def _effect_rows(effects: Effects, groups: list[Group], *, times: bool = False) -> list[list[Text]]:
    names = dict.fromkeys(name for _, name in effects)
    return [
        row(name.replace(",", " x "), *(_effect(effects[group, name], times) for group in groups))
        for name in names
    ]


def _effect(effect: Effect, times: bool = False) -> Text:
    estimate = exponential(effect.estimate) if times else effect.estimate
    shown = _text(estimate, _TIMES if times else _POINTS)
    known = effect.corrected is not None and effect.corrected < 1 - CONFIDENCE
    return Text(text=f"{shown.text} *" if known else shown.text, detail=shown.detail)


def _accuracy(found: Findings, group: Group, cell: Cell | None) -> Text:
    shown = _text(found.mean(group, cell), _POINTS)
    rates = Counter(each["learning_rate"] for each in found.results.chosen(group, cell).values())
    at = f" at {rates.most_common(1)[0][0]:g}" if rates else ""
    return Text(text=f"{shown.text}{at}", detail=shown.detail)


def _text(estimate: Estimate, unit: formatting.Unit) -> Text:
    return Text(
        text=formatting.number(estimate.value, unit), detail=formatting.spread(estimate, unit)
    )


def _name(cell: Cell | None) -> str:
    return "without loss" if cell is None else ", ".join(cell)
