"""All numbers of the factorial's records, and those that sentences in pages quote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.statistics.intervals import Estimate, mean_interval
from testbed.bench.factorial import rates
from testbed.bench.factorial.design import CELLS, Cell
from testbed.bench.factorial.effects import (
    PARTS,
    Effect,
    Group,
    Measure,
    Record,
    Results,
    contrasts,
    drift,
    score,
)

_CELL_BY_NAME = {"no-loss": None, **{"/".join(each): each for each in CELLS}}
Effects = Mapping[tuple[Group, str], Effect]


class Findings:
    """What the records show.

    Attributes:
        results: the trainings of the factorial.
        effects: all main effects and interactions, in points of accuracy.
        parts: `dblp-largest` minus `dblp`, taken apart, in points of accuracy.
        drifts: main effects on the logarithm of the replicas' divergence.
        rates: of each language model, perplexities by learning rate.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        named = contrasts()
        self.results = Results(records)
        self.effects: Effects = self.results.effects(named)
        self.parts: Effects = self.results.effects(PARTS)
        main = {name: weights for name, weights in named.items() if "," not in name}
        self.drifts: Effects = self.results.effects(main, drift)
        text = Results(records, metric="perplexity")
        self.rates = {group: rates.by_rate(text, group) for group in text.groups}

    def mean(self, group: Group, cell: Cell | None, measure: Measure = score) -> Estimate:
        """A measure of a cell over the seeds, in points of accuracy; None: without loss."""
        return mean_interval(list(self.results.values(group, cell, measure).values()))

    def divergence(self, group: Group, cell: Cell) -> Estimate:
        """The geometric mean of the replicas' relative distance at the end."""
        return exponential(self.mean(group, cell, drift))

    def entry(self, path: str) -> dict[str, Any]:
        """A number by `SECTION MODEL/OPTIMISER NAME`, such as `effect mlp/sgd memory=both`.

        Sections: `effect`, `part`, each with `-p` for the corrected p-value; `drift`; `cell` and
        `divergence` of a cell such as `in-order/none/zero` or `no-loss`; `rate` of `0.004:ratio`.

        Raises:
            LookupError, ValueError: there is none.
        """
        section, group_text, name = path.split()
        group = Group(*group_text.split("/"))
        kind, _, is_p = section.partition("-")
        if kind in ("effect", "part"):
            effect = (self.effects if kind == "effect" else self.parts)[group, name]
            return {"value": effect.corrected} if is_p else effect.estimate.as_json()
        if kind == "drift":
            return exponential(self.drifts[group, name].estimate).as_json()
        if kind == "rate":
            rate, _, what = name.partition(":")
            found: Estimate = vars(self.rates[group][rate])[what]
            return found.as_json()
        cell = _CELL_BY_NAME[name]
        if kind == "cell":
            return self.mean(group, cell).as_json()
        if kind == "divergence" and cell is not None:
            return self.divergence(group, cell).as_json()
        raise LookupError(section)


def exponential(estimate: Estimate) -> Estimate:
    """The estimate whose logarithm this is."""
    ends = (estimate.value, estimate.low, estimate.high)
    value, low, high = (None if each is None else math.exp(each) for each in ends)
    values = tuple(math.exp(each) for each in estimate.values)
    return Estimate(value=value, low=low, high=high, n=estimate.n, values=values)
