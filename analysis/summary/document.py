"""Makes the content of `summary.json`: the numbers of an experiment for programs."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from analysis import statistics
from analysis.data import evidence, measure
from analysis.data.evidence import FACTOR_PREFIX, REFERENCE, Evidence, Run, factor_text
from analysis.data.metrics import ALL_BURSTS, GATHER_BURSTS, TASK_METRICS, metric_names
from analysis.statistics import (
    METHOD,
    difference_interval,
    holm,
    mean_interval,
    paired_p_value,
    ratio_interval,
)
from analysis.summary import claims, lookup, pairing
from analysis.summary.lookup import BASELINE, OWN_LIMIT, several_tasks

SCHEMA = 1
_SAME_LIMIT = 0.03  # the published one of passes is what it comes to near a loss of 1


def summarise(results: Evidence) -> dict[str, Any]:
    """The content of `summary.json` (docs/reference/summary-json.md).

    Values are averaged over the points of a seed, and then over seeds.
    """
    entries = claims.select(results.published_ids, results.arms)
    measured = results.per_run()
    phased = lookup.phased_arms(results, measured)
    points = _points(results, measured, entries, phased)
    whole = measured
    if several_tasks(point["conditions"] for point in points):
        whole = measured.with_columns(pl.lit(None, pl.Float64).alias(name) for name in TASK_METRICS)
    in_points = {entry["id"] for _, _, entry in lookup.published_entries({"points": points})}
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "experiment": results.experiment,
        "intervals": METHOD,
        "verdicts": results.verdicts(),
        "waived_gates": list(evidence.waived(results.ok_runs)),
        "task_metric": measure.task_metric(measured),
        "paces": sorted({evidence.pace(run.config)["kind"] for run in results.ok_runs}),
        "compared": results.compared,
        **_cells(whole, results.arms),
        "unpaired": _unpaired(results, results.runs),
        **_no_pairs(measured, results.compared),
    }
    if results.runs_programs:
        summary["workload"] = "programs"
        del summary["task_metric"], summary["paces"]
    for arm, cell in summary["arms"].items():
        cell["congestion_control"] = results.congestion_controls(arm)
    # What belongs to single points of the sweep is compared there, not with the mean of all.
    remaining = [entry for entry in entries if entry.id not in in_points]
    if points:
        elsewhere = [
            entry for entry in remaining if entry.applies_to or entry.confidence == OWN_LIMIT
        ]
        summary["published_elsewhere"] = [entry.title for entry in elsewhere]
        remaining = [entry for entry in remaining if entry not in elsewhere]
    summary["published"] = claims.between_arms(remaining, summary, results.ok_runs)
    within_arm = claims.within_arm(entries, results.ok_runs, whole)
    for metric, compared in within_arm.items():
        summary["published"].setdefault(metric, []).extend(compared)
    summary["settings"] = claims.settings(results.published_ids)
    if points:
        summary["points"] = points
        factors = [point["factors"] for point in points]
        summary["contrasts"] = between_points(measured, factors, results.compared)
    else:
        summary["critical_shares"] = lookup.critical_shares(results.ok_runs, measured, phased)
    return summary


def _points(
    results: Evidence,
    measured: pl.DataFrame,
    entries: Sequence[claims.Claim],
    phased: Sequence[str],
) -> list[dict[str, Any]]:
    by_point: dict[tuple[tuple[str, str | None], ...], list[Run]] = {}
    for run in sorted(results.runs, key=results.point_order):
        point = tuple((name, factor_text(value)) for name, value in run.factors.items())
        by_point.setdefault(point, []).append(run)
    conditions_of = {
        factors: claims.shared_conditions([run for run in runs if run.config])
        for factors, runs in by_point.items()
        if factors
    }
    by_task = several_tasks(conditions_of.values())
    points = []
    for factors, conditions in conditions_of.items():
        runs = by_point[factors]
        rows = pairing.at_point(measured, dict(factors))
        cell = {
            "factors": dict(factors),
            "conditions": conditions,
            "n_planned": len(runs),
            **_cells(rows, results.arms),
            "unpaired": _unpaired(results, runs),
            **_no_pairs(rows, results.compared),
            "limits": _limits(runs, conditions),
            "critical_shares": lookup.critical_shares(runs, measured, phased),
        }
        here = [
            entry
            for entry in entries
            if (
                (entry.applies_to and entry.confidence != OWN_LIMIT)
                or (
                    entry.confidence == OWN_LIMIT  # of what this point's tolerances and loss give
                    and any(
                        math.isclose(limit, entry.bounds[0], rel_tol=_SAME_LIMIT)
                        for limit in cell["limits"].values()
                    )
                )
                or (by_task and entry.metrics[0] in TASK_METRICS)
            )
            and claims.meets(cell["factors"] | conditions, entry.applies_to)
        ]
        ok_runs = [run for run in runs if run.verdict == "ok"]
        cell["published"] = claims.between_arms(here, cell, ok_runs)
        points.append(cell)
    return points


def _unpaired(results: Evidence, runs: Sequence[Run]) -> dict[str, list[int]]:
    ok = {arm: set[tuple[int, str]]() for arm in results.arms}
    for run in runs:
        if run.verdict == "ok":
            ok[run.arm].add((run.seed, str(run.factors)))
    lacking = {
        f"{left}/{right}": sorted({seed for seed, _ in ok[left] ^ ok[right]})
        for left, right in results.compared
    }
    return {pair: seeds for pair, seeds in lacking.items() if seeds}


def _no_pairs(measured: pl.DataFrame, compared: Sequence[tuple[str, str]]) -> dict[str, Any]:
    by_pair = {
        f"{left}/{right}": apart
        for left, right in compared
        if (apart := pairing.no_pairs(measured, left, right))
    }
    return {"no_pairs": by_pair} if by_pair else {}


def _limits(runs: Sequence[Run], conditions: dict[str, Any]) -> dict[str, float]:
    """The two theoretical limits of `fixed-low/dblp` where the loss at a point is known."""
    loss = conditions.get("loss")
    tolerances = {run.arm: statistics.tolerances(run.config) for run in runs}
    baseline, reference = tolerances.get(BASELINE), tolerances.get(REFERENCE)
    if baseline is None or reference is None or not isinstance(loss, int | float) or not loss:
        return {}
    try:
        return {
            "bytes": statistics.byte_bound(baseline[1], reference[1]),
            "passes": statistics.pass_limit(baseline[1], reference[1], float(loss)),
        }
    except (ValueError, ZeroDivisionError):  # tolerances without such limits
        return {}


def json_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _cells(measured: pl.DataFrame, arms: Sequence[str]) -> dict[str, Any]:
    columns = metric_names(measured)
    table = pairing.measured(measured, arms, columns)
    document: dict[str, Any] = {"arms": {}, "ratios": {}, "differences": {}}
    for arm in arms:
        cell: dict[str, Any] = {"n_runs": table.n_runs[arm]}
        for name in columns:
            _put(cell, name, mean_interval(table.per_seed(arm, name)).as_json())
        document["arms"][arm] = cell
    pairs: dict[tuple[str, str, str], tuple[Any, Any, float | None]] = {}
    for left, right in itertools.permutations(arms, 2):
        cell = {}
        for name in columns:
            if (left, right, name) not in pairs:
                one, two = table.paired(left, right, name, ratio=True)
                p_value = paired_p_value(one, two, ratio=True)
                pairs[left, right, name] = one, two, p_value
                pairs[right, left, name] = two, one, p_value
            one, two, p_value = pairs[left, right, name]
            _put(cell, name, {**ratio_interval(one, two).as_json(), "p_value": p_value})
        document["ratios"][f"{left}/{right}"] = cell
        document["differences"][f"{left}-{right}"] = {
            name: difference_interval(*(values := table.paired(left, right, name))).as_json()
            | {"p_value": paired_p_value(*values, ratio=False)}
            for name in TASK_METRICS
            if name in columns
        }
    return document


def _put(cell: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    *parents, leaf = name.split(".")
    for parent in parents:
        cell = cell.setdefault(parent, {})
    cell[leaf] = value


CONTRASTED = (GATHER_BURSTS, ALL_BURSTS, "round_latency_s.mean", "training_time_s")
Point = Mapping[str, str | None]  # the level of each factor
_ENDS = ("from ", "to ")


def between_points(
    per_run: pl.DataFrame, points: Sequence[Point], compared: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """The contrasts of a sweep: how each pair's ratio changes between neighbouring points."""
    arms = list(dict.fromkeys(itertools.chain(*compared)))
    metrics = [name for name in CONTRASTED if name in per_run.columns]
    by_metric: dict[str, list[dict[str, Any]]] = {name: [] for name in metrics}
    contrasts = []
    for first, second in _neighbours(points):
        rows = pl.concat(  # of the two points, as if each arm were two
            pairing.at_point(per_run, point)
            .drop(pl.selectors.starts_with(FACTOR_PREFIX))
            .with_columns(arm=pl.concat_str(pl.lit(end), "arm"))
            for end, point in zip(_ENDS, (first, second), strict=True)
        )
        table = pairing.measured(rows, [end + arm for end in _ENDS for arm in arms], metrics)
        ratios: dict[str, Any] = {}
        for left, right in compared:
            for name in metrics:
                four = table.together([end + arm for end in _ENDS for arm in (left, right)], name)
                if not len(four[0]) or np.min(four) <= 0:
                    continue
                sides = four[2] / four[3], four[0] / four[1]
                entry: dict[str, Any] = ratio_interval(*sides).as_json()
                entry["p_value"] = paired_p_value(*sides, ratio=True)
                by_metric[name].append(entry)
                _put(ratios.setdefault(f"{left}/{right}", {}), name, entry)
        if ratios:
            contrasts.append({"from": dict(first), "to": dict(second), "ratios": ratios})
    for entries in by_metric.values():
        corrected = holm([entry["p_value"] for entry in entries])
        for entry, p_value in zip(entries, corrected, strict=True):
            entry["p_value_corrected"] = p_value
    return contrasts


def _neighbours(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    """The pairs of points that differ by one level of one factor, in the experiment's order."""
    for name in points[0] if points else ():
        alike: dict[tuple[Any, ...], list[Point]] = {}
        for point in points:
            rest = tuple(level for factor, level in point.items() if factor != name)
            alike.setdefault(rest, []).append(point)
        for along in alike.values():
            yield from itertools.pairwise(along)
