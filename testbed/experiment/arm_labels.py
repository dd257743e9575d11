"""Labels of arms that the command line changes: `tcp-cubic@congestion_control=bbr`.

A label is the arm's name in the file, and after each `@` a setting that it has instead. So results
of an arm and of a changed one never meet under one name.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.experiment.arm import Arm
from testbed.experiment.files import Point
from testbed.shared import own_code, yaml_input
from testbed.shared.registry import one_of
from testbed.shared.yaml_input import InputError
from testbed.transport.presets import REGISTRIES

MARK = "@"
_DEFAULT = "default"  # stands for a setting of the file that the changed arm does not have

Changes = dict[str, Any]  # key path below the arm -> its value instead of the file's


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An arm that is wanted: one of the file, or one that the command line changes."""

    label: str  # its name in results
    name: str  # the arm of the file
    changes: Changes
    arm: Any  # its settings
    options: tuple[tuple[str, str], ...] = ()  # of the command line, each with the key it replaced
    definition: dict[str, Any]  # its settings with all defaults that are known without factors


def variants(
    document: Any,
    in_file: Any,
    labels: Sequence[str],
    congestion_control: str | None,
    *,
    path: Path,
    points: Sequence[Point],
) -> list[Variant]:
    """The arms that are wanted, each with the label that says what is changed."""
    if not isinstance(document, Mapping) or not document:
        return []
    made: dict[str, Variant] = {}
    for label in labels or document:
        name, changes = parse(str(label))
        if name not in document:
            raise InputError(f"--arms: {path}: unknown arm {name!r}; {one_of(name, document)}")
        options = [(f"--arms {label}", f"arms.{name}.{key}") for key in changes]
        if congestion_control is not None:
            changes["congestion_control"] = congestion_control
            option = f"--congestion-control {congestion_control}"
            options.append((option, f"arms.{name}.congestion_control"))
        arm = _changed(document[name], changes)
        old = in_file.get(name) if isinstance(in_file, Mapping) else None
        definition = _definition(arm, path.parent)
        if not isinstance(old, Mapping) or not isinstance(arm, Mapping):
            changes = {}
        else:
            same = definition == _definition(old, path.parent)
            changes = {} if same else _differences(old, arm)
        _refuse_lost(name, changes, options, points)
        texts = (f"{MARK}{key}={_text(key, value)}" for key, value in changes.items())
        full = name + "".join(texts)
        variant = Variant(
            label=full,
            name=name,
            changes=changes,
            arm=arm,
            options=tuple(options),
            definition=definition,
        )
        made.setdefault(full, variant)
    return list(made.values())


def compatible(variants: Sequence[Variant]) -> list[list[Variant]]:
    """Divides variants into groups. No group has two of one arm, so it fits into one document."""
    groups: list[list[Variant]] = []
    for variant in variants:
        free = (group for group in groups if variant.name not in [other.name for other in group])
        if (group := next(free, None)) is None:
            groups.append(group := [])
        group.append(variant)
    return groups


def applied(document: dict[str, Any], group: Sequence[Variant]) -> dict[str, Any]:
    """A copy of an experiment whose arms are these variants where they are of the same arm."""
    arms = document.get("arms")
    if not isinstance(arms, Mapping):
        return document
    changed = {variant.name: _changed(arms[variant.name], variant.changes) for variant in group}
    return {**document, "arms": {**arms, **changed}}


def parse(label: str) -> tuple[str, Changes]:
    """The arm's name and what differs from the file's arm."""
    name, *texts = label.split(MARK)
    changes: Changes = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(
                f"--arms {label}: {text!r} must be key=value, for example "
                f"{name}{MARK}congestion_control=reno"
            )
        try:
            changes[key] = yaml_input.value_of(key, value)
        except InputError as error:
            raise InputError(f"--arms {label}: {error}") from None
    return name, changes


def _changed(arm: Any, changes: Changes) -> Any:
    """An arm with some of its settings replaced; what is no mapping stays as it is."""
    if not isinstance(arm, Mapping):
        return arm
    document = copy.deepcopy(dict(arm))
    for key, value in changes.items():
        if value == _DEFAULT:
            document.pop(key, None)
        else:
            yaml_input.replace(document, key, value)
    return document


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> Changes:
    """What an arm has instead of the settings that it had."""
    changes: Changes = {}
    for key in dict.fromkeys([*old, *new]):
        place, before, after = f"{path}{key}", old.get(key), new.get(key)
        if key not in new:
            changes[place] = _DEFAULT
        elif (
            isinstance(after, Mapping)
            and "name" not in after  # with a name it is one entry of a registry
            and isinstance(before, Mapping | None)
        ):
            changes |= _differences(before or {}, after, f"{place}.")
        elif before != after or key not in old:
            changes[place] = after
    return changes


def _definition(arm: Any, folder: Path) -> dict[str, Any]:
    """The settings of an arm with all defaults, so that two ways of writing it are equal."""
    try:
        checked = Arm.model_validate(arm, context={"folders": [folder]})
    except ValueError:  # a factor may supply what is missing
        return {"arm": arm}
    # Left out where it is the training's, as before arms could have one.
    rate = {} if checked.learning_rate is None else {"learning_rate": checked.learning_rate}
    return {**checked.resolved().describe(), "filling": checked.resolved_filling(), **rate}


def for_file(label: str) -> str:
    """A label as the name of an arm of its own in a file."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.")[:64]


def _refuse_lost(
    name: str, changes: Changes, options: Sequence[tuple[str, str]], points: Sequence[Point]
) -> None:
    """Refuse changes of an arm that a factor replaces: the label would lie."""
    replaced = [change for point in points for change in point.changes.items()]
    for key in changes:
        place = f"arms.{name}.{key}"
        for factor, value in replaced:
            if factor == f"arms.{name}":
                is_lost = isinstance(value, Mapping) and key.partition(".")[0] in value
            else:
                is_lost = yaml_input.overlap(place, factor)
            if is_lost:
                option = next((f"{text}: " for text, changed in options if changed == place), "")
                raise InputError(
                    f"{option}{place} cannot be changed: the experiment's factors set it at each "
                    "point; valid: a key that no factor sets, or --set factors={} beside it"
                )


def _text(key: str, value: Any) -> str:
    if key in REGISTRIES and isinstance(value, Mapping):
        with suppress(TypeError, ValueError):  # the schema says what is wrong with it
            value = REGISTRIES[key].text(value)
    if not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"))
    # A file of the user's own by its name: folders are of no interest in a table.
    return re.sub(r"[^:=,]*/", "", value) if own_code.is_own(value) else value
