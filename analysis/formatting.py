"""Prints numbers for people: rounded, with their unit, interval and n."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.data.metrics import describe
from analysis.statistics import Estimate

DASH = "\u2014"  # in place of a number that is missing; a note says why
TO = "\u2013"


@dataclass(frozen=True)
class Unit:
    """A unit to print in, the factor from the unit of the data, and decimals if they are fixed."""

    symbol: str
    factor: float = 1.0
    decimals: int | None = None


RATIO = Unit("x")
PERCENT = Unit("%", 100.0)
POINTS = Unit("points", 100.0, decimals=2)  # differences of percentages
_PREFIXED = {
    "s": (Unit("s"), Unit("ms", 1e3)),
    "bytes": (Unit("GB", 1e-9), Unit("MB", 1e-6), Unit("kB", 1e-3), Unit("B")),
    "share": (PERCENT,),
    "per_s": (Unit("1/s"),),
    "count": (Unit(""),),
    "bps": (Unit("Gbit/s", 1e-9), Unit("Mbit/s", 1e-6), Unit("kbit/s", 1e-3), Unit("bit/s")),
}


def unit_for(unit: str, values: Iterable[float | None]) -> Unit:
    """One unit for a row of numbers: the largest in which its greatest is not below 1."""
    greatest = max((abs(value) for value in values if value is not None), default=1.0)
    choices = _PREFIXED[unit]
    return next((choice for choice in choices if greatest * choice.factor >= 1), choices[-1])


def metric_unit(metric: str, values: Iterable[float | None]) -> tuple[str, Unit]:
    described = describe(metric)
    unit = unit_for(described.unit, values)
    return (f"{described.label} ({unit.symbol})" if unit.symbol else described.label), unit


def number(value: float | None, unit: Unit = RATIO, *, decimals: int | None = None) -> str:
    """Three significant digits (whole numbers in full, with thousands apart), without the unit."""
    if value is None:
        return DASH
    scaled = value * unit.factor
    places = _decimals(scaled, unit) if decimals is None else decimals
    text = f"{scaled:,.{places}f}".replace(",", "\u202f")  # narrow space
    return text.removeprefix("-") if not any(digit in text for digit in "123456789") else text


def spread(estimate: Estimate, unit: Unit = RATIO) -> str:
    """`low-high` with the value's decimals; without an interval the seeds' `values 598, 640`."""
    if estimate.value is None:
        return ""
    decimals = _decimals(estimate.value * unit.factor, unit)
    shown = [number(value, unit, decimals=decimals) for value in estimate.values]
    if shown:
        return f"values {', '.join(shown)}"
    if estimate.low is None or estimate.high is None:
        return ""
    low, high = (number(end, unit, decimals=decimals) for end in (estimate.low, estimate.high))
    return between(low, high)


def between(low: str, high: str) -> str:
    return f"{low} to {high}" if "-" in low + high else f"{low}{TO}{high}"


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.2g}" if p < 0.1 else f"= {p:.2f}"


def short(value: Any) -> str:
    if value is None:
        return DASH
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _decimals(value: float, unit: Unit) -> int:
    if unit.decimals is not None:
        return unit.decimals
    if value == 0 or not math.isfinite(value):
        return 0
    exponent = int(f"{abs(value):.2e}".split("e")[1])  # after rounding: 9.999 has that of 10
    return min(6, max(0, 2 - exponent))


def joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def left_out(part: Mapping[str, Any], pair: str) -> list[tuple[str, str]]:
    """The seeds that enter no ratio of a pair, and the reasons; of a summary or a point of it."""
    seeds_by_reason = {}
    if seeds := part.get("unpaired", {}).get(pair):
        seeds_by_reason["only one arm of the pair has an ok run"] = seeds
    if apart := part.get("no_pairs", {}).get(pair):
        seeds_by_reason[why_apart(apart)] = apart["seeds"]
    return [
        (f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}", why)
        for why, seeds in seeds_by_reason.items()
    ]


def why_apart(apart: Mapping[str, Any]) -> str:
    places = {"machine": "on different machines"}
    differ = dict.fromkeys(places.get(name, "with different code") for name in apart["differ"])
    return f"measured {' or '.join(differ)}"
