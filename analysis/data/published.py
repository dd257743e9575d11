"""Reads the papers' numbers (`published.yaml`)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.data.metrics import TASK_METRICS

FILE = Path(__file__).with_name("published.yaml")
_RENAMED = {"metric", "also", "value", "low", "high"}  # keys that are no fields as they stand
CONFIDENCES = ("CODE", "FULL", "2nd-FULL", "ABS", "DERIVED")
ANY_MODEL, NOT_STATED = "any", "not stated"  # in place of models' names


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published number or range: a ratio of two arms, or one value for each of two arms."""

    id: str
    title: str
    model: tuple[str, ...]
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
    applies_to: dict[str, Any] = field(default_factory=dict)
    within_arm: dict[str, Any] | None = None

    @property
    def section(self) -> str:
        """The section of `summary.json` that holds our value: `ratios` or `differences`."""
        if self.within_arm:
            return "differences" if self.metrics[0] in TASK_METRICS else "ratios"
        return "ratios" if self.ratio else "differences"

    @property
    def arms(self) -> list[str]:
        """The two arms that it compares; the first is the numerator or minuend."""
        if self.values:
            return list(self.values)
        if self.difference:
            return [part.strip() for part in self.difference.split(" - ")]
        if self.within_arm:
            return [self.within_arm["arm"]]
        return str(self.ratio).split("/")

    @property
    def bounds(self) -> tuple[float, float]:
        """The published range of the ratio or difference; the same twice for a single value."""
        if self.values:
            first, second = self.values.values()
            return (first - second, first - second)
        assert self.low is not None and self.high is not None
        return (self.low, self.high)


@cache
def load(path: Path = FILE) -> tuple[Published, ...]:
    """All entries of a file of published numbers."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    valid = sorted(document.get("models") or {})
    entries = tuple(
        _entry(each, f"{path.name}: {each.get('id')}", valid) for each in document["entries"]
    )
    for name, count in Counter(each.id for each in entries).items():
        if count > 1:
            raise ValueError(f"{path.name}: id {name!r} occurs twice; valid: once")
    return entries


@cache
def load_models(path: Path = FILE) -> dict[str, str]:
    """What `training.model` of an experiment calls each of the papers' models, by their names."""
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["models"])


@cache
def load_settings(path: Path = FILE) -> tuple[dict[str, Any], ...]:
    """The papers' settings: id, title, values, source, confidence and version of each."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(document.get("settings") or [])


def settings(ids: Sequence[str] | None) -> list[dict[str, Any]]:
    """The settings that an experiment names; by default all."""
    return [each for each in load_settings() if ids is None or each["id"] in ids]


def all_ids() -> set[str]:
    """The ids that an experiment may name."""
    return {each.id for each in load()} | {each["id"] for each in load_settings()}


def unknown(ids: Sequence[str] | None) -> list[str]:
    """Which of the ids that an experiment names do not exist."""
    known = all_ids()
    return [each for each in ids or [] if each not in known]


def select(
    entries: Sequence[Published], ids: Sequence[str] | None, arms: Sequence[str]
) -> list[Published]:
    """The entries that an experiment names, or else all that compare two of its arms."""
    if ids is not None:
        return [each for each in entries if each.id in ids]
    return [each for each in entries if set(each.arms) <= set(arms)]


def _entry(raw: dict[str, Any], where: str, valid_models: Sequence[str]) -> Published:
    known = {each.name for each in dataclasses.fields(Published)} - {"metrics"} | _RENAMED
    if set(raw) - known:
        raise ValueError(f"{where}: unknown key {min(set(raw) - known)!r}; valid: {sorted(known)}")
    if raw.get("confidence") not in CONFIDENCES:
        raise ValueError(
            f"{where}: confidence {raw.get('confidence')!r}; valid: {', '.join(CONFIDENCES)}"
        )
    model = _model(raw, where, valid_models)
    shapes = [
        {"ratio", "value"},
        {"ratio", "low", "high"},
        {"values"},
        {"difference", "value"},
        {"within_arm", "value"},
        {"within_arm", "low", "high"},
    ]
    given = set(raw) & {"ratio", "difference", "within_arm", "value", "low", "high", "values"}
    if given not in shapes or ("values" in raw and len(raw["values"]) != 2):
        raise ValueError(
            f"{where}: valid: ratio and value; ratio, low and high; values of two arms; "
            "difference and value; or within_arm with value, or low and high"
        )
    low = raw.get("value", raw.get("low"))
    high = raw.get("value", raw.get("high"))
    if "ratio" in raw and not (low is not None and high is not None and 0 < low <= high):
        raise ValueError(f"{where}: range {low} to {high}; valid: 0 < low <= high")
    fields = {name: value for name, value in raw.items() if name not in _RENAMED}
    fields |= {"model": model, "metrics": (raw["metric"], *raw.get("also", []))}
    return Published(**fields, low=low, high=high)


def _model(raw: dict[str, Any], where: str, valid: Sequence[str]) -> tuple[str, ...]:
    """The models of an entry, of which several are a list."""
    found = raw.get("model")
    if found in (ANY_MODEL, NOT_STATED):
        return (found,)
    names = found if isinstance(found, list) else [found]
    for name in names or [found]:
        if name not in valid:
            raise ValueError(
                f"{where}: model {name!r}; valid: {', '.join(valid)}, a list of these, "
                f"{ANY_MODEL!r} or {NOT_STATED!r}"
            )
    return tuple(names)
