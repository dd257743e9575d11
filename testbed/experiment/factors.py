"""Factors: the points of a sweep, each with the keys that it replaces.

A factor is either a key path with the values that it takes, or any name with labelled levels, each
of which replaces several keys together:

    factors:
      impairments.0.q: [0.6, 0.9]
      payload:
        - { label: small, training.model: mlp }
        - { label: large, training.model: small-cnn, arms.dblp.low: 0.024 }
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.shared import yaml_input
from testbed.shared.input_error import shown

LABEL = "label"
MOST_POINTS = 2_000  # of a sweep: each is an experiment that is checked
MOST_RUNS = 20_000


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a sweep."""

    values: dict[str, Any]  # factor -> value, or label where its levels have labels
    changes: dict[str, Any]  # key path -> value that it replaces in the experiment


def points(factors: Any) -> Iterator[Point]:
    """All combinations of the factors' values; the last factor changes fastest."""
    if not isinstance(factors, Mapping):
        raise ValueError(f"factors: {shown(factors)}: must map key paths to lists of values")
    for name, values in factors.items():
        if not isinstance(values, list) or not values:
            what = f"{shown(values)}: must be a list of at least one value, such as [1, 2]"
            raise ValueError(f"factors.{name}: {what}")
    count = math.prod(map(len, factors.values()))
    if count > MOST_POINTS:
        raise ValueError(f"factors: {count:,} points; valid: up to {MOST_POINTS:,}")
    levels = {name: _levels(name, values) for name, values in factors.items()}
    _check_apart(levels)
    for combination in itertools.product(*levels.values()):
        yield Point(
            values=dict(zip(levels, (shown for shown, _ in combination), strict=True)),
            changes={key: value for _, changes in combination for key, value in changes.items()},
        )


Level = tuple[Any, dict[str, Any]]  # the value or label that is shown; key path -> value


def _levels(name: str, values: list[Any]) -> list[Level]:
    labelled = [isinstance(value, Mapping) and LABEL in value for value in values]
    if not any(labelled):
        levels: list[Level] = [(each, {name: each}) for each in values]
    elif all(labelled):
        levels = [_labelled(name, number, value) for number, value in enumerate(values)]
    else:
        raise ValueError(
            f"factors.{name}.{labelled.index(False)}: this level has no label, others have; "
            "valid: a label in all, or in none"
        )
    shown = [each for each, _ in levels]
    for number, value in enumerate(shown):
        if value in shown[:number]:
            raise ValueError(f"factors.{name}.{number}: {value!r} stands twice; valid: once")
    return levels


def _labelled(name: str, number: int, level: Mapping[Any, Any]) -> Level:
    label = level[LABEL]
    if not isinstance(label, str | int | float) or isinstance(label, bool) or label == "":
        raise ValueError(f"factors.{name}.{number}.label: {label!r}: must be a text or a number")
    return label, {str(key): value for key, value in level.items() if key != LABEL}


def _check_apart(levels: Mapping[str, list[Level]]) -> None:
    """No two factors replace the same key, or one a part of the other: one of them would win."""
    owners: dict[str, str] = {}
    for factor, of_factor in levels.items():
        keys = dict.fromkeys(key for _, changes in of_factor for key in changes)
        for key in keys:
            for other, owner in owners.items():
                if yaml_input.overlap(key, other):
                    raise ValueError(
                        f"factors.{factor}: {key}: factor {owner!r} replaces "
                        f"{'it' if key == other else other} too; valid: one factor for each key"
                    )
        owners |= dict.fromkeys(keys, factor)
