"""Does a learning rate explain an effect? The same loss at each rate, and at the best of each side.

An effect that is there at one rate alone, and not where each side has its own best rate, is one of
the rate: what is given up was in the way of steps that were too large, or made up for small ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.statistics.intervals import NOTHING, Estimate, mean_interval, ratio_interval
from testbed.bench.factorial.design import DBLP
from testbed.bench.factorial.effects import Group, Record, Results

BEST = "best"  # of each side, chosen for each seed by the other seeds


@dataclass(frozen=True)
class AtRate:
    """Perplexity without loss and with it, and by what factor it is larger with it."""

    without: Estimate
    lossy: Estimate
    ratio: Estimate


def by_rate(results: Results, group: Group) -> dict[str, AtRate]:
    """By learning rate as text, and `best`: the last chunks given up, and none, paired by seed."""
    without, lossy = results.rates(group, None), results.rates(group, DBLP)
    found = {
        f"{rate:g}": _compared(without[rate], lossy[rate]) for rate in without if rate in lossy
    }
    best = (results.chosen(group, None), results.chosen(group, DBLP))
    return found | {BEST: _compared(*best)} if all(best) else found


def _compared(without: Mapping[int, Record], lossy: Mapping[int, Record]) -> AtRate:
    seeds = sorted(set(without) & set(lossy))
    sides = [[each[seed]["final"] for seed in seeds] for each in (without, lossy)]
    known = [None not in side for side in sides]
    one, two = (
        mean_interval(side) if is_known else NOTHING
        for side, is_known in zip(sides, known, strict=True)
    )
    return AtRate(one, two, ratio_interval(sides[1], sides[0]) if all(known) else NOTHING)
