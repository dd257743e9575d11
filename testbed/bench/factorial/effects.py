"""Main effects and interactions of the factors, paired by seed.

Effects are contrasts against each factor's first level, averaged over the levels of the factors
that they do not name. The interaction of two levels is the difference of differences, of three one
more. An effect is computed for each seed by itself, so all that a seed decides cancels; its
interval is Student's over the seeds.

Each cell counts at its best learning rate. Whoever picks the best of several by the same seeds that
are shown makes it look better than it is. So the rate of a seed is the one that is best on average
over the *other* seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.statistics.intervals import Estimate, holm, mean_interval, paired_p_value
from testbed.bench.factorial.design import CELLS, DBLP, LEVELS, Cell

Record = Mapping[str, Any]
Measure = Callable[[Record], float]
Weights = Mapping[Cell, float]

_CELL_OF = {(each.order, each.fillings): each for each in CELLS}
_LARGEST = "largest-magnitude-first"
_BOTH = Cell(_LARGEST, "both", "zero")
_ORDER_ALONE = Cell(_LARGEST, "none", "zero")
_MEMORY_ALONE = Cell("in-order", "both", "zero")
# `dblp-largest` minus `dblp`, taken apart: order first and memory then, or the other way round.
PARTS: Mapping[str, Weights] = {
    "both": {_BOTH: 1.0, DBLP: -1.0},
    "order-without-memory": {_ORDER_ALONE: 1.0, DBLP: -1.0},
    "order-with-memory": {_BOTH: 1.0, _MEMORY_ALONE: -1.0},
    "memory-in-order": {_MEMORY_ALONE: 1.0, DBLP: -1.0},
    "memory-largest-first": {_BOTH: 1.0, _ORDER_ALONE: -1.0},
}


class Group(NamedTuple):
    """What is compared within: one task with one optimiser."""

    model: str
    optimiser: str

    def __str__(self) -> str:
        return f"{self.model}/{self.optimiser}"


@dataclass(frozen=True)
class Effect:
    """A contrast's estimate, its p-value, and that corrected for being one of a family."""

    estimate: Estimate
    p_value: float | None
    corrected: float | None


def score(record: Record) -> float:
    """Points of accuracy, or -100 logarithms of the perplexity; -inf where a model diverged."""
    final = record["final"]
    if final is None:
        return -math.inf
    return float(final) * 100 if record["metric"] == "accuracy" else -100 * math.log(final)


def drift(record: Record) -> float:
    """The logarithm of the replicas' last divergence; -inf where they are equal."""
    last = record["divergence"][-1][1]
    return math.nan if last is None else math.log(last) if last else -math.inf


def contrasts() -> dict[str, Weights]:
    """By name, such as `order=rotating` or `order=rotating,memory=both`: the cells' weights."""
    found: dict[str, Weights] = {}
    for size in range(1, len(LEVELS) + 1):
        for factors in itertools.combinations(LEVELS, size):
            for levels in itertools.product(*(LEVELS[factor][1:] for factor in factors)):
                named = dict(zip(factors, levels, strict=True))
                name = ",".join(f"{factor}={level}" for factor, level in named.items())
                found[name] = {cell: _weight(cell, named) for cell in CELLS}
    return found


def _weight(cell: Cell, named: Mapping[str, str]) -> float:
    weight = 1.0
    for factor, levels in LEVELS.items():
        level = getattr(cell, factor)
        if factor not in named:
            weight /= len(levels)
        elif level == levels[0]:
            weight = -weight
        elif level != named[factor]:
            return 0.0
    return weight


class Results:
    """Trainings by group, cell, learning rate and seed; the cell None is training without loss."""

    def __init__(self, records: Sequence[Record], *, metric: str = "accuracy") -> None:
        """Those of the records whose metric it is."""
        self._cells: dict[tuple[Group, Cell | None], dict[float, dict[int, Record]]] = {}
        for each in records:
            if each["metric"] != metric:
                continue
            group = Group(each["model"], each["optimiser"])
            cell = _CELL_OF[each["order"], each["filling"]] if each["loss"] else None
            rates = self._cells.setdefault((group, cell), {})
            rates.setdefault(each["learning_rate"], {})[each["seed"]] = each
        self.groups = sorted({group for group, _ in self._cells})

    def rates(self, group: Group, cell: Cell | None) -> dict[float, dict[int, Record]]:
        """By learning rate and seed; rates that lack a seed of another are left out."""
        rates = self._cells.get((group, cell), {})
        most = max(map(len, rates.values()), default=0)
        whole = {rate: each for rate, each in sorted(rates.items()) if len(each) == most}
        return {rate: dict(sorted(each.items())) for rate, each in whole.items()}

    def chosen(self, group: Group, cell: Cell | None) -> dict[int, Record]:
        """By seed, the training at the rate that is best over the other seeds."""
        rates = self.rates(group, cell)
        seeds = sorted(set().union(*rates.values()))
        return {seed: rates[_best_rate(rates, seed)][seed] for seed in seeds}

    def values(self, group: Group, cell: Cell | None, measure: Measure = score) -> dict[int, float]:
        """A measure of the chosen trainings, by seed."""
        return {seed: measure(each) for seed, each in self.chosen(group, cell).items()}

    def effects(
        self, named: Mapping[str, Weights], measure: Measure = score
    ) -> dict[tuple[Group, str], Effect]:
        """The effects in all groups, by group and name; their p-values are corrected together."""
        keys, estimates, p_values = [], [], []
        for group in self.groups:
            cells = {cell: self.values(group, cell, measure) for cell in CELLS}
            for name, weights in named.items():
                values = _by_seed(weights, cells)
                keys.append((group, name))
                estimates.append(mean_interval(values))
                p_values.append(paired_p_value(values, [0.0] * len(values), ratio=False))
        found = zip(keys, estimates, p_values, holm(p_values), strict=True)
        return {key: Effect(estimate, p, corrected) for key, estimate, p, corrected in found}


def _best_rate(rates: Mapping[float, Mapping[int, Record]], left_out: int) -> float:
    def merit(rate: float) -> float:
        trainings = rates[rate]
        others = [seed for seed in trainings if seed != left_out] or list(trainings)
        return sum(score(trainings[seed]) for seed in others)

    return max(rates, key=merit)


def _by_seed(weights: Weights, cells: Mapping[Cell, Mapping[int, float]]) -> list[float]:
    """The contrast at each seed that all of its cells have."""
    used = {cell: weight for cell, weight in weights.items() if weight}
    seeds = sorted(set.intersection(*(set(cells[cell]) for cell in used)))
    return [sum(weight * cells[cell][seed] for cell, weight in used.items()) for seed in seeds]
