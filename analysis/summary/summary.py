"""The numbers of an experiment for programs: `summary.json`.

Arms are compared over what both of them have: runs are paired by seed and point of the sweep,
averaged over the points of a seed, and then over seeds.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data import learning, metrics, published
from analysis.data.load import FACTOR_PREFIX, Results, Run, factor_text
from analysis.statistics import byte_bound, pairing
from analysis.statistics.intervals import (
    NOTHING,
    Estimate,
    difference_interval,
    mean_interval,
    permutation_p_value,
    ratio_interval,
)
from analysis.summary import between_points
from analysis.summary import paper_conditions as condition

SCHEMA = 1
REFERENCE = "dblp"  # ratios are written as the paper writes them: baseline / DBLP
BASELINE = "fixed-low"
_UNKNOWN: Any = object()


def summarise(results: Results, per_run: pl.DataFrame) -> dict[str, Any]:
    """The content of `summary.json`; `per_run` is `metrics.per_run(results)`.

    Every measured entry is {value, low, high, n}: mean over seeds, its 95 % interval, number of
    seeds; ratios and differences have a `p_value` too. `ratios` holds both directions of every
    pair. A sweep's points follow in `points`: the same once more, for each alone.
    """
    entries = published.select(published.load(), results.published_ids, results.arms)
    points = _points(results, per_run, entries)
    in_points = {
        each["id"] for point in points for found in point["published"].values() for each in found
    }
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "experiment": results.experiment,
        "verdicts": results.verdicts(),
        "task_metric": learning.task_metric(results.training),
        "paces": sorted({learning.pace(run.config)["kind"] for run in results.ok_runs}),
        **_cells(per_run, results.arms),
        "unpaired": _unpaired(results.runs, results.arms),
    }
    # What belongs to single points of the sweep is compared there, not with the mean of all.
    remaining = [each for each in entries if each.id not in in_points]
    if points:
        elsewhere = [each for each in remaining if each.at]
        summary["published_elsewhere"] = [each.title for each in elsewhere]
        remaining = [each for each in remaining if not each.at]
    summary["published"] = published.beside(remaining, partial(entry, summary))
    of_points = between_points.beside(entries, per_run, partial(_keys_where, results))
    for metric, found in of_points.items():
        summary["published"].setdefault(metric, []).extend(found)
    summary["settings"] = published.settings(results.published_ids)
    if points:
        summary["points"] = points
    return summary


def _points(
    results: Results, per_run: pl.DataFrame, entries: Sequence[published.Published]
) -> list[dict[str, Any]]:
    """Each point of the sweep, in the experiment's order, also those without an ok run."""
    by_point: dict[tuple[tuple[str, str | None], ...], list[Run]] = {}
    for run in sorted(results.runs, key=results.place):
        point = tuple((name, factor_text(value)) for name, value in run.factors.items())
        by_point.setdefault(point, []).append(run)
    points = []
    for factors, runs in by_point.items():
        if not factors:
            continue
        rows = per_run.filter(
            *(
                pl.col(FACTOR_PREFIX + name).eq_missing(pl.lit(value))
                for name, value in factors
                if FACTOR_PREFIX + name in per_run.columns
            )
        )
        conditions = condition.shared([run for run in runs if run.config])
        cell = {
            "factors": dict(factors),
            "conditions": conditions,
            "n_planned": len(runs),
            **_cells(rows, results.arms),
            "unpaired": _unpaired(runs, results.arms),
            "limits": _limits(runs, conditions),
        }
        here = [
            each
            for each in entries
            if each.at and condition.fulfil(cell["factors"] | conditions, each.at)
        ]
        cell["published"] = published.beside(here, partial(entry, cell))
        points.append(cell)
    return points


def _keys_where(results: Results, wanted: dict[str, Any]) -> list[str]:
    """The ok runs under some conditions, or at such a point of the sweep."""
    return [
        run.key
        for run in results.ok_runs
        if condition.fulfil(run.factors | condition.of_run(run), wanted)
    ]


def _unpaired(runs: Sequence[Run], arms: Sequence[str]) -> dict[str, list[int]]:
    """Seeds that a pair lacks at some point since only one of its arms has an ok run there."""
    ok = {arm: set[tuple[int, str]]() for arm in arms}
    for run in runs:
        if run.verdict == "ok":
            ok[run.arm].add((run.seed, str(run.factors)))
    lacking = {
        f"{left}/{right}": sorted({seed for seed, _ in ok[left] ^ ok[right]})
        for left, right in pairs(arms)
    }
    return {pair: seeds for pair, seeds in lacking.items() if seeds}


def _limits(runs: Sequence[Run], conditions: dict[str, Any]) -> dict[str, float]:
    """The two theoretical bounds of `fixed-low/dblp` where the loss at a point is known."""
    loss = conditions.get("loss")
    found = {
        run.arm: byte_bound.tolerances(run.config)
        for run in runs
        if run.arm in (BASELINE, REFERENCE)
    }
    baseline, reference = found.get(BASELINE), found.get(REFERENCE)
    if baseline is None or reference is None or not isinstance(loss, int | float) or not loss:
        return {}
    try:
        return {
            "bytes": byte_bound.byte_bound(baseline[1], reference[1]),
            "passes": byte_bound.pass_bound(baseline[1], reference[1], float(loss)),
        }
    except ValueError:  # tolerances without such bounds
        return {}


def pairs(arms: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs (numerator, denominator) that tables show: over `dblp`, or else the first arm."""
    reference = REFERENCE if REFERENCE in arms else next(iter(arms), "")
    return [(arm, reference) for arm in arms if arm != reference]


def entry(summary: dict[str, Any], section: str, name: str, metric: str) -> Estimate:
    """One measured entry, such as `entry(summary, "arms", "dblp", "round_latency_s.p95")`."""
    found: Any = summary.get(section, {}).get(name, {})
    for part in metric.split("."):
        found = found.get(part, {})
    if "value" not in found:
        return NOTHING
    return Estimate(**{key: found[key] for key in ("value", "low", "high", "n")})


def p_value(summary: dict[str, Any], section: str, name: str, metric: str) -> float | None:
    """The permutation test's p-value of a ratio or a difference; None where there is none."""
    found: Any = summary.get(section, {}).get(name, {})
    for part in metric.split("."):
        found = found.get(part, {})
    value = found.get("p_value")
    return value if isinstance(value, float) else None


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2, ensure_ascii=False, allow_nan=False)
            file.write("\n")
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _cells(per_run: pl.DataFrame, arms: Sequence[str]) -> dict[str, Any]:
    """`arms`, `ratios` and `differences` over some runs."""
    columns = metrics.names(per_run)
    table = pairing.measured(per_run, arms, columns)
    document: dict[str, Any] = {"arms": {}, "ratios": {}, "differences": {}}
    for arm in arms:
        cell: dict[str, Any] = {"n_runs": table.n_runs[arm]}
        for name in columns:
            _put(cell, name, mean_interval(table.per_seed(arm, name)).as_json())
        document["arms"][arm] = cell
    p_values: dict[tuple[str, str, str], float | None] = {}
    for left, right in itertools.permutations(arms, 2):
        cell = {}
        for name in columns:
            values = table.paired(left, right, name)
            if (p_value := p_values.get((right, left, name), _UNKNOWN)) is _UNKNOWN:
                p_value = permutation_p_value(*values)
            p_values[left, right, name] = p_value
            _put(cell, name, {**ratio_interval(*values).as_json(), "p_value": p_value})
        document["ratios"][f"{left}/{right}"] = cell
        document["differences"][f"{left}-{right}"] = {
            name: {
                **difference_interval(*table.paired(left, right, name)).as_json(),
                "p_value": p_values[left, right, name],
            }
            for name in learning.TASK_METRICS
        }
    return document


def _put(cell: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    *parents, leaf = name.split(".")
    for parent in parents:
        cell = cell.setdefault(parent, {})
    cell[leaf] = value
