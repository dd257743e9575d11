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
    """A published value or range: of two arms, or of one at two points of a sweep."""

    id: str
    title: str
    model: Sequence[str]
    metrics: Sequence[str]
    section: str  # of `summary.json` that holds our value: `ratios` or `differences`
    arms: Sequence[str]  # the first is the numerator or minuend
    bounds: tuple[float, float]  # the same twice for a single value
    values: dict[str, float] | None = None  # of each arm
    within_arm: dict[str, Any] | None = None
    applies_to: dict[str, Any] = field(default_factory=dict)
    condition: str
    source: str
    confidence: str
    version: str


@cache
def _document() -> dict[str, Any]:
    return dict(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")))


@cache
def load() -> tuple[Published, ...]:
    """All published numbers."""
    return tuple(_entry(dict(each)) for each in _document()["entries"])


def _entry(raw: dict[str, Any]) -> Published:
    model, metrics = raw.pop("model"), (raw.pop("metric"), *raw.pop("also", []))
    ratio, difference = raw.pop("ratio", None), raw.pop("difference", None)
    values, within_arm = raw.get("values"), raw.get("within_arm")
    if values:
        first, second = values.values()
        raw["value"] = first - second
    if within_arm:
        arms = [within_arm["arm"]]
        is_ratio = metrics[0] not in TASK_METRICS
    else:
        arms = list(values or (ratio.split("/") if ratio else difference.split(" - ")))
        is_ratio = ratio is not None
    ends = [raw.pop("value")] * 2 if "value" in raw else [raw.pop("low"), raw.pop("high")]
    return Published(
        model=model if isinstance(model, list) else [model],
        metrics=metrics,
        section="ratios" if is_ratio else "differences",
        arms=arms,
        bounds=(ends[0], ends[1]),
        **raw,
    )


def load_models() -> dict[str, str]:
    """What `training.model` of an experiment calls each of the papers' models, by their names."""
    return dict(_document()["models"])


def settings(ids: Sequence[str] | None) -> list[dict[str, Any]]:
    """The papers' settings that an experiment names; by default all."""
    return [each for each in _document()["settings"] if ids is None or each["id"] in ids]


def all_ids() -> set[str]:
    """The ids that an experiment may name."""
    return {each.id for each in load()} | {each["id"] for each in settings(None)}


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
