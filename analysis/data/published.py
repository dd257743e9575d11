"""The papers' numbers (`published.yaml`) and where they lie against ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.data.learning import TASK_METRICS
from analysis.data.quantities import ALL_BURSTS, IMPAIRED
from analysis.statistics.intervals import Estimate

FILE = Path(__file__).with_name("published.yaml")
CONFIDENCES = ("CODE", "FULL", "2nd-FULL", "ABS", "DERIVED")


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published number or range: a ratio of two arms, or one value for each of two arms.

    Or it compares one arm `across` two points of a sweep, `first` and `second`. `at` names the
    conditions that it holds under: a factor's value, or a name of
    `analysis.summary.paper_conditions`.
    """

    id: str
    title: str
    metrics: tuple[str, ...]
    condition: str
    source: str
    confidence: str
    version: str
    ratio: str | None = None
    low: float | None = None  # equal to `high` for a single value
    high: float | None = None
    values: dict[str, float] | None = None
    difference: str | None = None
    at: dict[str, Any] = field(default_factory=dict)
    across: dict[str, Any] | None = None

    @property
    def section(self) -> str:
        """Where ours stands in `summary.json`: `ratios` or `differences`."""
        if self.across:
            return "differences" if self.metrics[0] in TASK_METRICS else "ratios"
        return "ratios" if self.ratio else "differences"

    @property
    def arms(self) -> list[str]:
        """The two arms that it compares; the first is the numerator or minuend."""
        if self.values:
            return list(self.values)
        if self.difference:
            return [part.strip() for part in self.difference.split(" - ")]
        if self.across:
            return [self.across["arm"]]
        return str(self.ratio).split("/")

    @property
    def bounds(self) -> tuple[float, float]:
        """What is compared: the ratio's range, or the difference of the two values."""
        if self.values:
            first, second = self.values.values()
            return (first - second, first - second)
        assert self.low is not None and self.high is not None
        return (self.low, self.high)


@cache
def load(path: Path = FILE) -> tuple[Published, ...]:
    """All entries of a file of published numbers.

    Raises:
        ValueError: an entry that is malformed; the message names it.
    """
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    entries = tuple(_entry(each, f"{path.name}: {each.get('id')}") for each in document["entries"])
    ids = [each.id for each in entries]
    for each in ids:
        if ids.count(each) > 1:
            raise ValueError(f"{path.name}: id {each!r} stands twice; valid: once")
    return entries


@cache
def load_settings(path: Path = FILE) -> tuple[dict[str, Any], ...]:
    """What the papers set, not measured: id, title, values, source, confidence and version."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(document.get("settings") or [])


def settings(ids: Sequence[str] | None) -> list[dict[str, Any]]:
    """The settings that an experiment names; by default all."""
    return [each for each in load_settings() if ids is None or each["id"] in ids]


def unknown(ids: Sequence[str] | None) -> list[str]:
    """Which of the ids that an experiment names do not exist."""
    known = {each.id for each in load()} | {each["id"] for each in load_settings()}
    return [each for each in ids or [] if each not in known]


def select(
    entries: Sequence[Published], ids: Sequence[str] | None, arms: Sequence[str]
) -> list[Published]:
    """The entries that an experiment names, or else all that compare two of its arms."""
    if ids is not None:
        return [each for each in entries if each.id in ids]
    return [each for each in entries if set(each.arms) <= set(arms)]


def beside(
    entries: Sequence[Published], measured: Callable[[str, str, str], Estimate]
) -> dict[str, list[dict[str, Any]]]:
    """The paper's values by metric, each beside our estimate: `published` in `summary.json`.

    `measured` gives ours for a section (`ratios`, `differences`), a pair's name and a metric. Where
    one kind of impairment makes all burst rounds, its rounds are not shown a second time; where an
    experiment lacks that kind, only an entry that is about nothing else is shown.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for each in entries:
        if each.across:
            continue
        section = each.section
        compared = ("/" if section == "ratios" else "-").join(each.arms)
        shown: dict[str, Estimate] = {}
        for metric in each.metrics:
            ours = measured(section, compared, metric)
            if metric.startswith(IMPAIRED):
                if metric != each.metrics[0] and ours.value is None:
                    continue
                if ours == measured(section, compared, ALL_BURSTS):
                    metric = ALL_BURSTS
            shown[metric] = ours
        for metric, ours in shown.items():
            found.setdefault(metric, []).append(stated(each, f"{section[:-1]} {compared}", ours))
    return found


def stated(entry: Published, compared: str, ours: Estimate) -> dict[str, Any]:
    """An entry of `published` in `summary.json`: the paper's value, its source, and ours."""
    low, high = entry.bounds
    return {
        "id": entry.id,
        "title": entry.title,
        "compared": compared,
        **({"value": low} if low == high else {"low": low, "high": high}),
        **({"values": entry.values} if entry.values else {}),
        "condition": entry.condition,
        "source": entry.source,
        "confidence": entry.confidence,
        "version": entry.version,
        "ours": ours.as_json(),
        "inside_our_interval": inside(ours, low, high),
    }


def inside(ours: Estimate, low: float, high: float) -> bool | None:
    """Whether the paper's value, or some value of its range, lies inside our interval.

    None where we have no interval.
    """
    if ours.low is None or ours.high is None:
        return None
    return ours.low <= high and low <= ours.high


def _entry(raw: dict[str, Any], where: str) -> Published:
    known = {"id", "title", "metric", "also", "ratio", "value", "low", "high", "values"}
    known |= {"difference", "at", "across", "condition", "source", "confidence", "version"}
    if set(raw) - known:
        raise ValueError(f"{where}: unknown key {min(set(raw) - known)!r}; valid: {sorted(known)}")
    if raw.get("confidence") not in CONFIDENCES:
        raise ValueError(
            f"{where}: confidence {raw.get('confidence')!r}; valid: {', '.join(CONFIDENCES)}"
        )
    shapes = [
        {"ratio", "value"},
        {"ratio", "low", "high"},
        {"values"},
        {"difference", "value"},
        {"across", "value"},
        {"across", "low", "high"},
    ]
    given = set(raw) & {"ratio", "difference", "across", "value", "low", "high", "values"}
    if given not in shapes or ("values" in raw and len(raw["values"]) != 2):
        raise ValueError(
            f"{where}: valid: ratio and value; ratio, low and high; values of two arms; "
            "difference and value; or across with value, or low and high"
        )
    low = raw.get("value", raw.get("low"))
    high = raw.get("value", raw.get("high"))
    if "ratio" in raw and not (low is not None and high is not None and 0 < low <= high):
        raise ValueError(f"{where}: range {low} to {high}; valid: 0 < low <= high")
    return Published(
        id=raw["id"],
        title=raw["title"],
        metrics=(raw["metric"], *raw.get("also", [])),
        condition=raw["condition"],
        source=raw["source"],
        confidence=raw["confidence"],
        version=raw["version"],
        ratio=raw.get("ratio"),
        low=low,
        high=high,
        values=raw.get("values"),
        difference=raw.get("difference"),
        at=raw.get("at") or {},
        across=raw.get("across"),
    )
