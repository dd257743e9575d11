"""Published comparisons of one arm with itself at two points of a sweep: two values of k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from analysis.data import learning
from analysis.data.published import Published, stated
from analysis.statistics import pairing
from analysis.statistics.intervals import Estimate, difference_interval, ratio_interval


def beside(
    entries: Sequence[Published],
    per_run: pl.DataFrame,
    keys_where: Callable[[dict[str, Any]], list[str]],
) -> dict[str, list[dict[str, Any]]]:
    """The entries that compare points, by metric, each beside ours; those not run are left out.

    Args:
        entries: any; those that compare arms are passed over.
        per_run: `metrics.per_run(results)`.
        keys_where: the keys of the runs under some conditions.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for each in entries:
        if each.across is None:
            continue
        arm = each.across["arm"]
        sides = {
            side: per_run.filter(
                (pl.col("arm") == arm) & pl.col("run_key").is_in(keys_where(each.across[side]))
            )
            for side in ("first", "second")
        }
        if any(rows.is_empty() for rows in sides.values()):
            continue
        words = " / " if each.section == "ratios" else " - "
        compared = words.join(_text(each.across[side]) for side in sides)
        for metric in each.metrics:
            ours = compare(sides["first"], sides["second"], metric)
            shown = f"{each.section[:-1]} {arm}: {compared}"
            found.setdefault(metric, []).append(stated(each, shown, ours))
    return found


def compare(first: pl.DataFrame, second: pl.DataFrame, metric: str) -> Estimate:
    """Ratio of first over second, or the difference for accuracy and perplexity; paired by seed."""
    both = pl.concat(
        [
            rows.select("seed", pl.lit(side).alias("arm"), metric)
            for side, rows in (("first", first), ("second", second))
        ]
    )
    means = both.group_by("seed", "arm").agg(pl.col(metric).mean())
    values = pairing.measured(means, ["first", "second"], [metric]).paired(
        "first", "second", metric
    )
    of_pairs = difference_interval if metric in learning.TASK_METRICS else ratio_interval
    return of_pairs(*values)


def _text(conditions: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in conditions.items()
    )
