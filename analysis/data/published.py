"""Reads the papers' numbers (`published.yaml`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.data.metrics import TASK_METRICS

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
def _document() -> dict[str, Any]:
    return dict(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")))


@cache
def load() -> tuple[Published, ...]:
    """All published numbers."""
    return tuple(_entry(dict(each)) for each in _document()["entries"])


def _entry(raw: dict[str, Any]) -> Published:
    model = raw.pop("model")
    value = raw.pop("value", None)
    return Published(
        model=tuple(model if isinstance(model, list) else [model]),
        metrics=(raw.pop("metric"), *raw.pop("also", [])),
        **(raw if value is None else {**raw, "low": value, "high": value}),
    )


def load_models() -> dict[str, str]:
    """What `training.model` of an experiment calls each of the papers' models, by their names."""
    return dict(_document()["models"])


def load_settings() -> list[dict[str, Any]]:
    """The papers' settings: id, title, values, source, confidence and version of each."""
    return list(_document()["settings"])


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
