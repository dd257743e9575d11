"""Experiments by name or path: the YAML file read, sized, validated and expanded into runs."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from testbed.experiment import files
from testbed.experiment.arm import Arm
from testbed.experiment.run import NOT_OF_A_RUN, Run
from testbed.experiment.schema import Experiment
from testbed.shared import own_code, problems, yaml_input
from testbed.shared.problems import Problem
from testbed.shared.registry import did_you_mean, one_of
from testbed.shared.yaml_input import InputError
from testbed.transport.presets import REGISTRIES

_MOST_LINES = 20  # of a file that is wrong in more places
_MARK = "@"
_DEFAULT = "default"  # stands for a setting of the file that the changed arm does not have
_Changes = dict[str, Any]  # key path below the arm -> its value instead of the file's


def load(
    name_or_path: str,
    *,
    overrides: Sequence[str] = (),
    arms: Sequence[str] = (),
    seeds: int | None = None,
    congestion_control: str | None = None,
    profile: str = files.DEFAULT_PROFILE,
) -> list[Run]:
    """Read an experiment and expand it into runs, in the file's order: seeds, points, arms."""
    chosen = _chosen(name_or_path, overrides, arms, congestion_control, profile)
    path, where, points, wrong = chosen.path, chosen.where, chosen.points, list[str]()
    experiments: dict[tuple[int, str], Experiment] = {}
    for group in _compatible(chosen.arms) or [[]]:
        for number, point in enumerate(points):
            try:
                experiment = _validated(chosen, point, group)
            except InputError as error:
                wrong += error.args
                continue
            experiments |= {(number, variant.label): experiment for variant in group}
    if wrong:
        lines = list(dict.fromkeys(wrong))
        more = [f"{path}: and {len(lines) - _MOST_LINES} more problems"]
        raise InputError(*lines[:_MOST_LINES], *(more if lines[_MOST_LINES:] else []))
    first = experiments[0, chosen.arms[0].label]
    used_seeds = _extend(first.seeds, seeds)
    if (count := len(used_seeds) * len(points) * len(chosen.arms)) > files.MOST_RUNS:
        raise InputError(
            f"{where}: {count:,} runs (seeds x points x arms); valid: up to {files.MOST_RUNS:,}"
        )
    settings = _settings(chosen, first)
    fingerprint = functools.cache(own_code.fingerprint)

    def run(seed: int, number: int, variant: _Variant) -> Run:
        experiment, point = experiments[number, variant.label], points[number].values
        own = experiment.own_code(variant.name, path.resolve().parent)
        return Run(
            experiment=experiment,
            arm=variant.label,
            name_in_file=variant.name,
            seed=seed,
            factors=point,
            folder=path.resolve().parent,
            source=path,
            profile=profile,
            code={place: fingerprint(place) for place in own},
            settings=settings,
            definition=variant.definition,
        )

    return [run(*of) for of in itertools.product(used_seeds, range(len(points)), chosen.arms)]


def resolved(name_or_path: str, **options: Any) -> dict[str, Any]:
    """An experiment with all options of a command line and all defaults, to be written as YAML."""
    runs = load(name_or_path, **options)
    chosen = _chosen(name_or_path, **{key: options[key] for key in options if key != "seeds"})
    document = runs[0].experiment.model_dump(mode="json", exclude_none=True)
    changed = {key.partition(".")[0] for point in chosen.points for key in point.changes}
    for key in (*changed, "factors", "impairments"):
        document[key] = chosen.document.get(key, {})
    document["seeds"] = list(dict.fromkeys(run.seed for run in runs))
    # A label as the name of an arm of its own in a file.
    names = (re.sub(r"[^a-z0-9.]+", "-", variant.label.lower()) for variant in chosen.arms)
    document["arms"] = {
        name.strip("-.")[:64]: variant.arm for name, variant in zip(names, chosen.arms, strict=True)
    }
    document["compare"] = [p for p in document["compare"] if {*p} <= document["arms"].keys()]
    return {
        key: document[key]
        for key in Experiment.model_fields
        if key in document and key != "profiles" and document[key] not in ({}, [])
    }


def _extend(seeds: Sequence[int], count: int | None) -> list[int]:
    if count is None:
        return list(seeds)
    further = (seed for seed in itertools.count(1) if seed not in seeds)
    return list(itertools.islice(itertools.chain(seeds, further), count))


class _Variant(NamedTuple):
    """An arm of the file, or one that the command line changes."""

    label: str  # its name in results: the arm's, and after every `@` a setting that it has instead
    name: str  # the arm of the file
    changes: _Changes
    arm: Any  # its settings
    options: list[tuple[str, str]]  # of the command line, with the keys that they replaced
    definition: dict[str, Any]  # its settings with all defaults that are known without factors


def _variants(
    document: Any,
    in_file: Any,
    labels: Sequence[str],
    congestion_control: str | None,
    path: Path,
    points: Sequence[files.Point],
) -> list[_Variant]:
    """Return the chosen arms, so that an arm and a changed one never meet under one label."""
    if not isinstance(document, Mapping) or not document:
        return []
    made: dict[str, _Variant] = {}
    for label in labels or document:
        name, changes = _parsed(str(label))
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
        texts = (f"{_MARK}{key}={_text(key, value)}" for key, value in changes.items())
        full = name + "".join(texts)
        made.setdefault(full, _Variant(full, name, changes, arm, options, definition))
    return list(made.values())


def _compatible(variants: Sequence[_Variant]) -> list[list[_Variant]]:
    """Divide variants into groups that fit into one document: none has two of one arm."""
    groups: list[list[_Variant]] = []
    for variant in variants:
        free = (group for group in groups if variant.name not in [other.name for other in group])
        if (group := next(free, None)) is None:
            groups.append(group := [])
        group.append(variant)
    return groups


def _applied(document: dict[str, Any], group: Sequence[_Variant]) -> dict[str, Any]:
    arms = document.get("arms")
    if not isinstance(arms, Mapping):
        return document
    changed = {variant.name: _changed(arms[variant.name], variant.changes) for variant in group}
    return {**document, "arms": {**arms, **changed}}


def _parsed(label: str) -> tuple[str, _Changes]:
    name, *texts = label.split(_MARK)
    changes: _Changes = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(
                f"--arms {label}: {text!r} must be key=value, for example "
                f"{name}{_MARK}congestion_control=reno"
            )
        try:
            changes[key] = yaml_input.value_of(key, value)
        except InputError as error:
            raise InputError(f"--arms {label}: {error}") from None
    return name, changes


def _changed(arm: Any, changes: _Changes) -> Any:
    """Replace some settings of an arm; what is no mapping stays as it is."""
    if not isinstance(arm, Mapping):
        return arm
    document = copy.deepcopy(dict(arm))
    for key, value in changes.items():
        if value == _DEFAULT:
            document.pop(key, None)
        else:
            yaml_input.replace(document, key, value)
    return document


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> _Changes:
    changes: _Changes = {}
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
    """Return the settings of an arm with all defaults: two ways of writing it are equal."""
    try:
        checked = Arm.model_validate(arm, context={"folders": [folder]})
    except ValueError:  # a factor may supply what is missing
        return {"arm": arm}
    # Left out where it is the training's, as before arms could have one.
    rate = {} if checked.learning_rate is None else {"learning_rate": checked.learning_rate}
    return {**checked.resolved().describe(), "filling": checked.resolved_filling(), **rate}


def _refuse_lost(
    name: str, changes: _Changes, options: Sequence[tuple[str, str]], points: Sequence[files.Point]
) -> None:
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


class _Chosen(NamedTuple):
    """An experiment as a command line changes it, before it is checked."""

    path: Path
    document: dict[str, Any]
    where: str  # the file and the profile, for messages
    points: list[files.Point]
    arms: list[_Variant]
    options: list[tuple[str, str]]  # of the command line, each with the key that it replaced


def _chosen(
    name_or_path: str,
    overrides: Sequence[str] = (),
    arms: Sequence[str] = (),
    congestion_control: str | None = None,
    profile: str = files.DEFAULT_PROFILE,
) -> _Chosen:
    path = files.find(name_or_path)
    document = yaml_input.read(path)
    try:
        files.apply_profile(document, profile)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    files.give_arm(document)
    in_file = copy.deepcopy(document.get("arms"))
    options = [(f"--set {text}", yaml_input.override(document, text)) for text in overrides]
    where = str(path)
    if profile != files.DEFAULT_PROFILE or files.changes(document, profile):
        where += f": profile {profile}"
    try:
        points = list(files.points(document))
        for option, key in options:
            for replaced in points[0].changes:
                if yaml_input.within(key, replaced) and not key.startswith("arms."):
                    raise ValueError(
                        f"{option}: the experiment's factors set {replaced}; valid: a key that no "
                        "factor sets, or --set factors={} beside it"
                    )
    except ValueError as error:
        raise InputError(f"{_to_blame(['factors'], options)}{where}: {error}") from None
    variants = _variants(document.get("arms"), in_file, arms, congestion_control, path, points)
    return _Chosen(path, document, where, points, variants, options)


def _checked(document: dict[str, Any], path: Path) -> Experiment:
    return Experiment.model_validate(document, context={"folders": [path.parent]})


def _problems(document: dict[str, Any], path: Path) -> list[Problem]:
    try:
        _checked(document, path)
    except ValidationError as error:
        return problems.of(error, Experiment)
    return []


def _settings(chosen: _Chosen, first: Experiment) -> dict[str, Any]:
    """Return what all runs share, without arms, seeds and what the points replace."""
    settings = first.model_dump(mode="json", exclude=NOT_OF_A_RUN | {"simulation"})
    if first.trains:  # runs with it and without must not share tables
        settings["transport"].setdefault("tcp_rto_min_s", None)
    for key in {key for point in chosen.points for key in point.changes}:
        place: Any = settings
        *above, last = key.split(".")
        with suppress(LookupError, TypeError, ValueError):  # with what is above it, it is gone
            for part in above:
                place = place[int(part) if isinstance(place, list) else part]
            if isinstance(place, list):
                place[int(last)] = {}
            else:
                del place[last]
    return settings


def _to_blame(location: Sequence[int | str], options: Sequence[tuple[str, str]]) -> str:
    """The options that replaced something at, above or below a problem's place."""
    place = ".".join(map(str, location))
    blamed = [option for option, key in options if not place or yaml_input.overlap(key, place)]
    return "".join(f"{option}: " for option in dict.fromkeys(blamed))


def _validated(chosen: _Chosen, point: files.Point, group: Sequence[_Variant]) -> Experiment:
    path, where = chosen.path, chosen.where
    base = _applied(chosen.document, group)
    document = copy.deepcopy(base)
    for key, value in point.changes.items():
        try:
            yaml_input.replace(document, key, value)
        except InputError as error:
            raise InputError(f"{where}: factors: {error}") from None
    replaced = [variant for variant in group if f"arms.{variant.name}" in point.changes]
    try:
        return _checked(_applied(document, replaced), path)
    except ValidationError as error:
        wrong = list(dict.fromkeys(problems.of(error, Experiment)))
    without_factors = _problems(base, path) if point.changes else []
    options = [*chosen.options, *(option for variant in group for option in variant.options)]
    no_workload = any(problem.place[:1] == ("workload",) for problem in wrong)
    lines: dict[object, str] = {}
    for problem in wrong:
        place, near = problem.place, ""
        missing = problem.sort == problems.MISSING
        if no_workload and missing and place == ("arms",):
            continue  # nobody knows whether it needs arms
        blamed, of_factor = _to_blame(place, options), ""
        if place and problem not in without_factors:
            of_factor = _to_blame(place, [("factors", key) for key in point.changes])
        if of_factor:
            blamed = blamed or _to_blame(("factors",), options)
        elif place[:1] == ("arms",) and len(place) == 3 and missing:
            blamed = blamed or _to_blame(place[:2], options)
            near = did_you_mean(str(place[1]), set(base["arms"]) - {str(place[1])})
        line = f"{blamed}{where}: {of_factor}{problems.line(problem)}{near}"
        # An option may put the same mistake into all arms: the first says it.
        is_of_all = blamed and place[:1] == ("arms",)
        lines.setdefault((blamed, place[2:], problem.message) if is_of_all else line, line)
    # Code beside the experiment is named as the experiment is, not by its absolute path.
    folder, shown_folder = f"{path.parent.resolve()}/", str(path.parent / "_")[:-1]
    raise InputError(*(line.replace(folder, shown_folder) for line in lines.values()))
