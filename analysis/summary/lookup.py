"""Reads what `summary.json` holds: estimates, p-values, pairs of arms, points of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from analysis import statistics
from analysis.data import metrics
from analysis.data.evidence import Evidence, Run, over_one
from analysis.data.metrics import ALL_BURSTS, GATHER_BURSTS, IMPAIRED, LEGS, TOLERANCE_VARIED
from analysis.statistics import NOTHING, Estimate

BASELINE = "fixed-low"
OWN_LIMIT = "DERIVED"  # the confidence of our own arithmetic: a limit, not a result of the paper


def pairs(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pairs (numerator, denominator) that tables show; stored summaries may lack them."""
    compared = summary.get("compared", over_one(list(summary["arms"])))
    return [(left, right) for left, right in compared]


def ratio_names(summary: Mapping[str, Any]) -> list[str]:
    return list(map("/".join, pairs(summary)))


def unlike(summary: Mapping[str, Any]) -> list[str]:
    """The pairs of which an arm has runs that no ratio has: the arms' means are of other runs."""
    return list(dict.fromkeys((*summary.get("unpaired", {}), *summary.get("no_pairs", {}))))


def entry(summary: Mapping[str, Any], section: str, name: str, metric: str) -> Estimate:
    """One measured entry, such as `entry(summary, "arms", "dblp", "round_latency_s.p95")`."""
    stored = _find(summary, section, name, metric)
    return Estimate.of_json(stored) if "value" in stored else NOTHING


def with_values(
    parts: Sequence[Mapping[str, Any]], section: str, names: Iterable[str], metrics: Sequence[str]
) -> list[str]:
    """Those of some metrics that an arm or a pair has in any part: a point, a contrast."""
    places = [(part, name) for part in parts for name in names]
    return [
        metric
        for metric in metrics
        if any(entry(part, section, name, metric).value is not None for part, name in places)
    ]


def p_value(summary: Mapping[str, Any], section: str, name: str, metric: str) -> float | None:
    value: float | None = _find(summary, section, name, metric).get("p_value")
    return value


def _find(summary: Mapping[str, Any], section: str, name: str, metric: str) -> Any:
    inner: Any = summary.get(section, {}).get(name, {})
    for part in metric.split("."):
        inner = inner.get(part, {})
    return inner


def of_programs(arms: Mapping[str, Any]) -> list[str]:
    names = {
        f"{section}.{who}.{quantity}"
        for cell in arms.values()
        for section in metrics.SECTIONS
        for who, quantities in cell.get(section, {}).items()
        for quantity in quantities
    }
    return sorted(names, key=metrics.order)


# A script for torchrun has these; they come before those of hosts and flows.
_OF_SCRIPTS = (
    *("time_to_target", "rounds_to_target", "target_reached", "accuracy", "perplexity"),
    *("realised_loss.", "passes", "bytes"),
)


def with_programs(metrics: Sequence[str], arms: Mapping[str, Any]) -> list[str]:
    """A table's metrics, those of programs behind those of rounds; `IMPAIRED` stands for kinds."""
    kinds = sorted({kind for cell in arms.values() for kind in cell.get(IMPAIRED.rstrip("."), {})})
    impaired = [IMPAIRED + kind for kind in kinds] if len(kinds) > 1 else []
    names = [kind for name in metrics for kind in (impaired if name == IMPAIRED else [name])]
    programs = of_programs(arms)
    first = [name for name in names if "latency_s." in name]
    if programs:
        first += [name for name in names if name.startswith(_OF_SCRIPTS)]
    return [*first, *programs, *(name for name in names if name not in first)]


def points(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    return summary.get("points") or []


def bounded_metric(summary: Mapping[str, Any]) -> str:
    """The metric that a sweep's `limits` are about: they are those of a gather alone."""
    of_gather = (
        entry(point, "ratios", pair, GATHER_BURSTS).value
        for point in points(summary)
        for pair in ratio_names(summary)
    )
    return GATHER_BURSTS if any(of_gather) else ALL_BURSTS


def factors_text(factors: Mapping[str, Any]) -> str:
    """A point of the sweep in words, such as `rtt_s = 0.02, q = 0.9`."""
    return ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in factors.items())


def published_entries(
    summary: Mapping[str, Any],
) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Every published value beside ours: factors of the point (the whole first), metric, entry."""
    for part in (summary, *points(summary)):
        for metric, entries in part.get("published", {}).items():
            for published in entries:
                yield part.get("factors", {}), metric, published


def several_tasks(conditions: Iterable[Mapping[str, Any]]) -> bool:
    tasks = {
        (condition["model"], condition.get("dataset"))
        for condition in conditions
        if "model" in condition
    }
    return len(tasks) > 1


def is_of_several_tasks(summary: Mapping[str, Any]) -> bool:
    return several_tasks(point["conditions"] for point in points(summary))


Shares = dict[str, dict[str, float]]  # arm -> seed (a text, as JSON has it) -> share


def phased_arms(results: Evidence, measured: pl.DataFrame) -> list[str]:
    """The arms whose tolerance depends on the phase, by their settings or by what was logged."""
    phased = set(measured.filter(TOLERANCE_VARIED)["arm"])
    for run in results.ok_runs:
        of_legs = (statistics.tolerances(run.config, leg) for leg in LEGS)
        if any(of_leg is not None and of_leg[0] != of_leg[1] for of_leg in of_legs):
            phased.add(run.arm)
    return [arm for arm in results.arms if arm in phased]


def critical_shares(runs: Sequence[Run], measured: pl.DataFrame, phased: Sequence[str]) -> Shares:
    """The share of critical rounds of each run of a phased arm; the runs are of one point."""
    share_of = dict(measured.select("run_key", "critical_share").iter_rows())
    shares: Shares = {}
    for arm in phased:
        for run in sorted(runs, key=lambda run: run.seed):
            if run.arm == arm and (share := share_of.get(run.key)) is not None:
                shares.setdefault(arm, {})[str(run.seed)] = share
    return shares


def critical_rounds(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "arm": arm,
            "point": factors_text(part.get("factors", {})),
            "seed": int(seed),
            "critical_share": share,
        }
        for arm in summary["arms"]
        for part in points(summary) or [dict(summary)]
        for seed, share in part.get("critical_shares", {}).get(arm, {}).items()
    ]
