"""Experiments by name or path, and what their files say without being checked, which is quick.

Profiles replace keys for other machines; the file's own values are those of `laptop`. Factors are
the points of a sweep: key paths with values, or names with labelled levels of several keys.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from testbed.shared import yaml_input
from testbed.shared.input_error import InputError, shown
from testbed.shared.registry import did_you_mean, one_of

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
DEFAULT_PROFILE = "laptop"
NOT_OF_A_PROFILE = ("name", "description", "profiles", "published", "compare")
MOST_RUNS = 20_000
_MOST_POINTS = 2_000  # of a sweep: each is an experiment that is checked
_LABEL = "label"


class Summary(NamedTuple):
    """An experiment that comes with the project: its runs, its profiles, and what it shows."""

    name: str
    runs: int
    profiles: list[str]
    description: str


class Point(NamedTuple):
    values: dict[str, Any]  # factor -> value, or label where its levels have labels
    changes: dict[str, Any]  # key path -> value that it replaces in the experiment


def names() -> list[str]:
    return sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


def find(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.suffix in yaml_input.SUFFIXES:
        if not path.is_file():
            near = "" if path.parent.parts else did_you_mean(path.stem, names())
            for other in map(path.with_suffix, yaml_input.SUFFIXES):
                if other.is_file():
                    near = f"; did you mean {str(other)!r}?"
            raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}{near}")
        return path
    if path.is_file():
        raise InputError(f"{path}: not a YAML file; valid: FILE.yaml, FILE.yml")
    shipped = EXPERIMENTS / f"{name_or_path}.yaml"
    if "/" in name_or_path or not shipped.is_file():
        near = did_you_mean(path.name, names())
        raise InputError(
            f"unknown experiment {name_or_path!r}; valid: {', '.join(names())}, FILE.yaml{near}"
        )
    here = Path.cwd()
    return shipped.relative_to(here) if shipped.is_relative_to(here) else shipped


def summary(name: str) -> Summary:
    document = yaml_input.read(find(name))
    apply_profile(document, DEFAULT_PROFILE)
    give_arm(document)
    runs = len(document["arms"]) * len(list(points(document))) * len(document["seeds"])
    return Summary(name, runs, profiles(document), document.get("description", ""))


def give_arm(document: dict[str, Any]) -> None:
    """Give programs that are compared with nothing the one arm that an experiment must have."""
    workload = document.get("workload")
    if isinstance(workload, Mapping) and workload.get("kind") in ("programs", "torchrun"):
        document.setdefault("arms", {workload["kind"]: {}})


def profile_names(name_or_path: str) -> list[str]:
    return profiles(yaml_input.read(find(name_or_path)))


def profiles(document: Mapping[str, Any]) -> list[str]:
    declared = document.get("profiles")
    names = declared if isinstance(declared, Mapping) else ()
    return list(dict.fromkeys([DEFAULT_PROFILE, *names]))


def changes(document: Mapping[str, Any], profile: str) -> Mapping[str, Any]:
    return (document.get("profiles") or {}).get(profile) or {}


def apply_profile(document: dict[str, Any], profile: str) -> None:
    declared = document.get("profiles") or {}
    if not isinstance(declared, Mapping):
        raise InputError("profiles: must map names to the keys that they replace")
    if profile not in profiles(document):
        raise InputError(f"unknown profile {profile!r}; {one_of(profile, profiles(document))}")
    if not isinstance(declared.get(profile) or {}, Mapping):
        raise InputError(f"profiles.{profile}: must map key paths to values")
    for key, value in changes(document, profile).items():
        first = str(key).partition(".")[0]
        if first in NOT_OF_A_PROFILE:
            raise InputError(f"profiles.{profile}.{key}: a profile cannot change {first!r}")
        try:
            yaml_input.replace(document, str(key), value)
        except InputError as error:
            raise InputError(f"profiles.{profile}.{error}") from None


def points(document: Mapping[str, Any]) -> Iterator[Point]:
    """All combinations of the factors' values; the last factor changes fastest."""
    factors = document.get("factors") or {}
    if not isinstance(factors, Mapping):
        raise InputError(f"factors: {shown(factors)}: must map key paths to lists of values")
    for name, values in factors.items():
        if not isinstance(values, list) or not values:
            what = f"{shown(values)}: must be a list of at least one value, such as [1, 2]"
            raise InputError(f"factors.{name}: {what}")
    count = math.prod(map(len, factors.values()))
    if count > _MOST_POINTS:
        raise InputError(f"factors: {count:,} points; valid: up to {_MOST_POINTS:,}")
    levels = {name: _levels(name, values) for name, values in factors.items()}
    _check_apart(levels)
    for combination in itertools.product(*levels.values()):
        values = dict(zip(levels, (value for value, _ in combination), strict=True))
        yield Point(values, {key: value for _, keys in combination for key, value in keys.items()})


_Level = tuple[Any, dict[str, Any]]  # the value or label that is shown; key path -> value


def _levels(name: str, values: list[Any]) -> list[_Level]:
    labelled = [isinstance(value, Mapping) and _LABEL in value for value in values]
    if any(labelled) and not all(labelled):
        raise InputError(
            f"factors.{name}.{labelled.index(False)}: this level has no label, others have; "
            "valid: a label in all, or in none"
        )
    levels: list[_Level] = []
    for number, value in enumerate(values):
        label, keys = value, {name: value}
        if all(labelled):
            label = value[_LABEL]
            keys = {str(key): replaced for key, replaced in value.items() if key != _LABEL}
            if not isinstance(label, str | int | float) or isinstance(label, bool) or label == "":
                where = f"factors.{name}.{number}.label"
                raise InputError(f"{where}: {label!r}: must be a text or a number")
        if label in [other for other, _ in levels]:
            raise InputError(f"factors.{name}.{number}: {label!r} stands twice; valid: once")
        levels.append((label, keys))
    return levels


def _check_apart(levels: Mapping[str, list[_Level]]) -> None:
    """No two factors replace the same key, or one a part of the other: one of them would win."""
    owners: dict[str, str] = {}
    for factor, of_factor in levels.items():
        keys = dict.fromkeys(key for _, replaced in of_factor for key in replaced)
        for key, (other, owner) in itertools.product(keys, owners.items()):
            if yaml_input.overlap(key, other):
                raise InputError(
                    f"factors.{factor}: {key}: factor {owner!r} replaces "
                    f"{'it' if key == other else other} too; valid: one factor for each key"
                )
        owners |= dict.fromkeys(keys, factor)
