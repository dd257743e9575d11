"""How a ratio of two arms changes from one point of a sweep to the next: contrasts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from analysis.data.evidence import FACTOR_PREFIX
from analysis.data.metrics import ALL_BURSTS, GATHER_BURSTS
from analysis.statistics import pairing
from analysis.statistics.intervals import holm, paired_p_value, ratio_interval
from analysis.summary.lookup import pairs

METRICS = (GATHER_BURSTS, ALL_BURSTS, "round_latency_s.mean", "training_time_s")
Point = Mapping[str, str | None]  # the level of each factor
_ENDS = ("from ", "to ")


def between_points(
    per_run: pl.DataFrame, points: Sequence[Point], arms: Sequence[str]
) -> list[dict[str, Any]]:
    """The contrasts of a sweep: `from`, `to`, and in `ratios` by pair and metric the change.

    Each is the geometric mean over the seeds that both arms have at both points on one machine with
    one code, with Student's interval, the p-value of no change, and this corrected (Holm) for all
    contrasts of the metric.
    """
    metrics = [each for each in METRICS if each in per_run.columns]
    by_metric: dict[str, list[dict[str, Any]]] = {name: [] for name in metrics}
    found = []
    for first, second in _neighbours(points):
        table = _measured(per_run, (first, second), arms, metrics)
        ratios: dict[str, Any] = {}
        for left, right in pairs(arms):
            for name in metrics:
                four = table.together([end + arm for end in _ENDS for arm in (left, right)], name)
                if not len(four[0]) or np.min(four) <= 0:
                    continue
                sides = four[2] / four[3], four[0] / four[1]
                entry: dict[str, Any] = ratio_interval(*sides).as_json()
                entry["p_value"] = paired_p_value(*sides, ratio=True)
                by_metric[name].append(entry)
                place = ratios.setdefault(f"{left}/{right}", {})
                *sections, last = name.split(".")
                for section in sections:
                    place = place.setdefault(section, {})
                place[last] = entry
        if ratios:
            found.append({"from": dict(first), "to": dict(second), "ratios": ratios})
    for entries in by_metric.values():
        corrected = holm([each["p_value"] for each in entries])
        for entry, p_value in zip(entries, corrected, strict=True):
            entry["p_value_corrected"] = p_value
    return found


def _neighbours(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    """The pairs of points that differ by one level of one factor, in the experiment's order."""
    for name in points[0] if points else ():
        alike: dict[tuple[Any, ...], list[Point]] = {}
        for point in points:
            rest = tuple(level for factor, level in point.items() if factor != name)
            alike.setdefault(rest, []).append(point)
        for along in alike.values():
            yield from itertools.pairwise(along)


def _measured(
    per_run: pl.DataFrame, ends: Sequence[Point], arms: Sequence[str], metrics: Sequence[str]
) -> pairing.Measured:
    """The values of two points, as if each arm were two."""
    rows = pl.concat(
        pairing.at_point(per_run, point)
        .drop(pl.selectors.starts_with(FACTOR_PREFIX))
        .with_columns(pl.concat_str(pl.lit(end), "arm").alias("arm"))
        for end, point in zip(_ENDS, ends, strict=True)
    )
    return pairing.measured(rows, [end + arm for end in _ENDS for arm in arms], metrics)
