"""Reads what `summary.json` holds: estimates, p-values, pairs of arms, points of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.data import program_metrics
from analysis.data.metrics import IMPAIRED
from analysis.statistics.intervals import METHOD, NOTHING, Estimate

REFERENCE = "dblp"  # ratios are written as the paper writes them: baseline / DBLP
BASELINE = "fixed-low"
OWN_LIMIT = "DERIVED"  # the confidence of our own arithmetic: a limit, not a result of the paper


def pairs(arms: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs (numerator, denominator) that tables show: over `dblp`, or else the first arm."""
    reference = REFERENCE if REFERENCE in arms else next(iter(arms), "")
    return [(arm, reference) for arm in arms if arm != reference]


def ratio_names(summary: Mapping[str, Any]) -> list[str]:
    """The names in `ratios` of the pairs that tables show."""
    return [f"{left}/{right}" for left, right in pairs(list(summary["arms"]))]


def entry(summary: Mapping[str, Any], section: str, name: str, metric: str) -> Estimate:
    """One measured entry, such as `entry(summary, "arms", "dblp", "round_latency_s.p95")`."""
    found = _find(summary, section, name, metric)
    if "value" not in found:
        return NOTHING
    known = {key: found[key] for key in ("value", "low", "high", "n")}
    return Estimate(**known, values=found.get("values", ()))


def interval_words(summary: Mapping[str, Any]) -> str:
    """What the intervals of a summary are; older ones, which do not say it, have a bootstrap's."""
    return "Student's t" if summary.get("intervals") == METHOD else "bootstrap"


def p_value(summary: Mapping[str, Any], section: str, name: str, metric: str) -> float | None:
    """The permutation test's p-value of a ratio or a difference; None where there is none."""
    value = _find(summary, section, name, metric).get("p_value")
    return value if isinstance(value, float) else None


def _find(summary: Mapping[str, Any], section: str, name: str, metric: str) -> Any:
    found: Any = summary.get(section, {}).get(name, {})
    for part in metric.split("."):
        found = found.get(part, {})
    return found


def with_impairment_kinds(metrics: Sequence[str], arms: Mapping[str, Any]) -> list[str]:
    """A table's metrics: `IMPAIRED` becomes one per kind of impairment, if there are several.

    `arms` is that section of a summary.
    """
    kinds = sorted({kind for cell in arms.values() for kind in cell.get(IMPAIRED.rstrip("."), {})})
    found: list[str] = []
    for name in metrics:
        if name != IMPAIRED:
            found.append(name)
        elif len(kinds) > 1:
            found.extend(IMPAIRED + kind for kind in kinds)
    return found


def of_programs(arms: Mapping[str, Any]) -> list[str]:
    """The metrics of programs that a summary's arms have, by quantity."""
    found = {
        f"{section}.{who}.{quantity}"
        for cell in arms.values()
        for section in program_metrics.SECTIONS
        for who, quantities in cell.get(section, {}).items()
        for quantity in quantities
    }
    return sorted(found, key=program_metrics.order)


def with_programs(metrics: Sequence[str], arms: Mapping[str, Any]) -> list[str]:
    """The same as `with_impairment_kinds`, with those of programs behind the latency of rounds."""
    found = with_impairment_kinds(metrics, arms)
    latencies = [name for name in found if "latency_s." in name]
    return [*latencies, *of_programs(arms), *(each for each in found if each not in latencies)]


def points(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points of the sweep; none where no factor is swept."""
    return summary.get("points") or []


def factors_text(factors: Mapping[str, Any]) -> str:
    """A point of the sweep in words, such as `rtt_s = 0.02, q = 0.9`."""
    return ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in factors.items())


def published_entries(
    summary: Mapping[str, Any],
) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Every published value beside ours, as (factors of the point, metric, entry).

    The whole sweep comes first, with empty factors.
    """
    for part in (summary, *points(summary)):
        for metric, entries in part["published"].items():
            for each in entries:
                yield part.get("factors", {}), metric, each


def published_range(published: Mapping[str, Any]) -> tuple[float, float]:
    """The ends of the paper's range; the same twice for a single value."""
    if "value" in published:
        return published["value"], published["value"]
    return published["low"], published["high"]
