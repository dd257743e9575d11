"""Experiments by name or path: the YAML file read, sized, validated and expanded into runs."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from testbed.experiment import arm_labels, factors, profiles, shipped
from testbed.experiment.arm_labels import Variant
from testbed.experiment.run import NOT_OF_A_RUN, Run
from testbed.experiment.schema import Experiment
from testbed.experiment.shipped import find
from testbed.experiment.taken_phases import FinishedRuns
from testbed.shared import own_code, problems, yaml_input
from testbed.shared.registry import did_you_mean
from testbed.shared.run_directory import RESULTS
from testbed.shared.yaml_input import InputError

_MOST_LINES = 20  # of a file that is wrong in more places


def load(
    name_or_path: str,
    *,
    overrides: Sequence[str] = (),
    arms: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    congestion_control: str | None = None,
    controller: str | None = None,
    profile: str = profiles.DEFAULT_PROFILE,
    results: Path = RESULTS,
) -> list[Run]:
    """Read an experiment and expand it into runs, in the file's order: seeds, points, arms."""
    chosen = _chosen(name_or_path, overrides, arms, congestion_control, controller, profile)
    path, document, where = chosen.path, chosen.document, chosen.where
    points, wanted, options, wrong = chosen.points, chosen.arms, chosen.options, chosen.wrong
    experiments: dict[tuple[int, str], Experiment] = {}
    for group in arm_labels.compatible(wanted) or [[]]:
        for number, point in enumerate(points):
            changed = arm_labels.applied(document, group)
            blamed = [*options, *(each for variant in group for each in variant.options)]
            try:
                found = _validated(changed, point, group, path, where, blamed)
            except InputError as error:
                wrong += error.args
                continue
            experiments |= {(number, variant.label): found for variant in group}
    if wrong:
        raise _together(wrong, path)
    first = experiments[0, wanted[0].label]
    used_seeds = _extend(first.seeds, seeds)
    if (count := len(used_seeds) * len(points) * len(wanted)) > factors.MOST_RUNS:
        raise InputError(
            f"{where}: {count:,} runs (seeds x points x arms); valid: up to {factors.MOST_RUNS:,}"
        )
    try:
        settings = _settings(document, first, path, points)
        settings.pop("simulation", None)  # a lab's have nothing of it
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    finished = FinishedRuns(folders=[path.resolve().parent, Path()], results=results)

    def with_phases(experiment: Experiment, seed: int, point: factors.Point) -> Experiment:
        try:
            return finished.give_phases(experiment, seed, point.values)
        except InputError as error:
            blamed = _to_blame(("phases", "from"), options)
            raise InputError(f"{blamed}{where}: {error}") from None

    fingerprint = functools.cache(own_code.fingerprint)
    return [
        Run(
            experiment=with_phases(experiments[number, variant.label], seed, point),
            arm=variant.label,
            name_in_file=variant.name,
            seed=seed,
            factors=point.values,
            folder=path.resolve().parent,
            source=path,
            profile=profile,
            code={
                place: fingerprint(place)
                for place in experiments[number, variant.label].own_code(
                    variant.name, path.resolve().parent
                )
            },
            settings=settings,
            definition=variant.definition,
        )
        for seed in used_seeds
        for number, point in enumerate(points)
        for variant in wanted
    ]


def resolved(name_or_path: str, **options: Any) -> dict[str, Any]:
    """An experiment with all options of a command line and all defaults, to be written as YAML."""
    runs = load(name_or_path, **options)
    names = ("overrides", "arms", "congestion_control", "controller", "profile")
    chosen = _chosen(name_or_path, **{key: options[key] for key in names if key in options})
    document = runs[0].experiment.model_dump(mode="json", exclude_none=True)
    changed = {key.partition(".")[0] for point in chosen.points for key in point.changes}
    for key in (*changed, "factors", "impairments"):
        document[key] = chosen.document.get(key, {})
    document["seeds"] = list(dict.fromkeys(run.seed for run in runs))
    document["arms"] = {arm_labels.for_file(each.label): each.arm for each in chosen.arms}
    return {
        key: document[key]
        for key in Experiment.model_fields
        if key in document and key != "profiles" and document[key] not in ({}, [])
    }


def _extend(seeds: Sequence[int], wanted: int | Sequence[int] | None) -> list[int]:
    if not isinstance(wanted, int):
        return list(dict.fromkeys(seeds if wanted is None else wanted))
    further = (seed for seed in itertools.count(1) if seed not in seeds)
    return list(itertools.islice(itertools.chain(seeds, further), wanted))


class _Chosen(NamedTuple):
    """An experiment as a command line changes it, before it is checked."""

    path: Path
    document: dict[str, Any]
    where: str  # the file and the profile, for messages
    points: list[factors.Point]
    arms: list[Variant]
    options: list[tuple[str, str]]  # of the command line, each with the key that it replaced
    wrong: list[str]  # of profiles that are not chosen


def _chosen(
    name_or_path: str,
    overrides: Sequence[str] = (),
    arms: Sequence[str] = (),
    congestion_control: str | None = None,
    controller: str | None = None,
    profile: str = profiles.DEFAULT_PROFILE,
) -> _Chosen:
    path = find(name_or_path)
    document = yaml_input.read(path)
    wrong = [f"{path}: {each}" for each in _wrong_keys_of_profiles(document, path, chosen=profile)]
    try:
        profiles.apply(document, profile)
    except InputError as error:
        raise _together([*wrong, f"{path}: {error}"], path) from None
    shipped.give_arm(document)
    in_file = copy.deepcopy(document.get("arms"))
    options = [(f"--set {text}", yaml_input.override(document, text)) for text in overrides]
    if controller is not None:
        document["controller"] = controller
        options.append((f"--controller {controller}", "controller"))
    where = str(path)
    if profile != profiles.DEFAULT_PROFILE or profiles.changes(document, profile):
        where += f": profile {profile}"
    try:
        points = list(factors.points(document.get("factors") or {}))
        _refuse_lost(options, points)
    except ValueError as error:
        told = f"{_to_blame(['factors'], options)}{where}: {error}"
        raise _together([*wrong, told], path) from None
    wanted = arm_labels.variants(
        document.get("arms"), in_file, arms, congestion_control, path=path, points=points
    )
    return _Chosen(path, document, where, points, wanted, options, wrong)


def _together(wrong: Sequence[str], path: Path) -> InputError:
    """One error of many lines, each once."""
    told = list(dict.fromkeys(wrong))
    more = [f"{path}: and {len(told) - _MOST_LINES} more problems"] if told[_MOST_LINES:] else []
    return InputError(*told[:_MOST_LINES], *more)


def _wrong_keys_of_profiles(document: dict[str, Any], path: Path, *, chosen: str) -> Iterator[str]:
    """What no experiment has, in the profiles that are not chosen: the profile and the key."""
    for profile in profiles.names(document):
        if profile == chosen or not isinstance(profile, str):
            continue
        sized = copy.deepcopy(document)
        try:
            profiles.apply(sized, profile)
        except InputError as error:
            yield str(error)
            continue
        changed = [f"{key}." for key in profiles.changes(document, profile)]
        if not changed:
            continue
        # One key that is wrong for sure keeps the checks of the whole away: they take time.
        sized["seeds"] = None
        try:
            Experiment.model_validate(sized, context={"folders": [path.parent]})
        except ValidationError as error:
            for each in problems.of(error, Experiment):
                place = f"{problems.dotted(each.place)}."
                if each.sort == problems.UNKNOWN and place.startswith(tuple(changed)):
                    yield f"profiles.{profile}.{problems.explain([each])}"


def _refuse_lost(options: Sequence[tuple[str, str]], points: Sequence[factors.Point]) -> None:
    """Refuse an option whose key every point of the sweep replaces: it would change nothing."""
    for option, key in options:
        for replaced in points[0].changes:
            if yaml_input.within(key, replaced) and not key.startswith("arms."):
                raise ValueError(
                    f"{option}: the experiment's factors set {replaced}; valid: a key that no "
                    "factor sets, or --set factors={} beside it"
                )


def _settings(
    document: dict[str, Any], first: Experiment, path: Path, points: Sequence[factors.Point]
) -> dict[str, Any]:
    """What all runs of the experiment share, without arms, seeds and points."""
    shared = {key: value for key, value in document.items() if key != "factors"}
    try:
        found = (
            Experiment.model_validate(shared, context={"folders": [path.parent]})
            if document.get("factors")
            else first
        )
    except ValidationError as error:
        replaced = {key for point in points for key in point.changes}
        for each in problems.of(error, Experiment):
            place = problems.dotted(each.place)
            of_factor = any(yaml_input.within(place, key) for key in replaced)
            if of_factor and each.sort != problems.MISSING and _given(shared, each.place):
                raise InputError(problems.explain([each])) from None
        return {key: value for key, value in shared.items() if key not in NOT_OF_A_RUN}
    return found.model_dump(mode="json", exclude=NOT_OF_A_RUN)


def _given(document: Any, place: problems.Place) -> bool:
    """Whether a document has a value there that is not null, which waits for another."""
    for part in place:
        try:
            document = document[part]
        except (KeyError, IndexError, TypeError):
            return False
    return document is not None


def _problems(document: dict[str, Any], path: Path) -> list[problems.Problem]:
    """What is wrong with an experiment without its factors."""
    try:
        Experiment.model_validate(document, context={"folders": [path.parent]})
    except ValidationError as error:
        return problems.of(error, Experiment)
    return []


def _to_blame(location: Sequence[int | str], options: Sequence[tuple[str, str]]) -> str:
    """The options that replaced something at, above or below a problem's place."""
    place = ".".join(map(str, location))
    found = [option for option, key in options if not place or yaml_input.overlap(key, place)]
    return "".join(f"{option}: " for option in dict.fromkeys(found))


def _validated(
    document: dict[str, Any],
    point: factors.Point,
    variants: Sequence[Variant],
    path: Path,
    where: str,
    options: Sequence[tuple[str, str]],
) -> Experiment:
    """The experiment at a point; `options` are (option of the command line, key it replaced)."""
    resolved = copy.deepcopy(document)
    for key, value in point.changes.items():
        try:
            yaml_input.replace(resolved, key, value)
        except InputError as error:
            raise InputError(f"{where}: factors: {error}") from None
    replaced = [each for each in variants if f"arms.{each.name}" in point.changes]
    try:
        resolved = arm_labels.applied(resolved, replaced)
        return Experiment.model_validate(resolved, context={"folders": [path.parent]})
    except ValidationError as error:
        without_factors = _problems(document, path) if point.changes else []
        told = []
        found = problems.once(problems.of(error, Experiment))
        no_workload = any(each.place[:1] == ("workload",) for each in found)
        for each in found:
            if no_workload and (each.place, each.sort) == (("arms",), problems.MISSING):
                continue  # nobody knows whether it needs arms
            blamed, near = _to_blame(each.place, options), ""
            keys = [("factors", key) for key in point.changes]
            of_factor = _to_blame(each.place, keys) if each.place else ""
            if of_factor and each in without_factors:
                of_factor = ""  # it is there without the factors, too
            if of_factor:
                blamed = blamed or _to_blame(("factors",), options)
            elif (
                each.place[:1] == ("arms",)
                and len(each.place) == 3
                and each.sort == problems.MISSING
            ):
                blamed = blamed or _to_blame(each.place[:2], options)
                name = str(each.place[1])
                near = did_you_mean(name, set(document["arms"]) - {name})
            told.append(f"{blamed}{where}: {of_factor}{problems.lines([each])[0]}{near}")
        # Code beside the experiment is named as the experiment is, not by its absolute path.
        folder = f"{path.parent.resolve()}/"
        raise InputError(
            *(each.replace(folder, str(path.parent / "_")[:-1]) for each in told)
        ) from None
