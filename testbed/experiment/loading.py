"""Experiments by name or path: the YAML file read, sized, validated and expanded into runs."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from testbed.experiment import arm_labels, files
from testbed.experiment.arm_labels import Variant
from testbed.experiment.run import NOT_OF_A_RUN, Run
from testbed.experiment.schema import Experiment
from testbed.shared import own_code, problems, yaml_input
from testbed.shared.problems import Problem
from testbed.shared.registry import did_you_mean
from testbed.shared.yaml_input import InputError

_MOST_LINES = 20  # of a file that is wrong in more places


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
    for group in arm_labels.compatible(chosen.arms) or [[]]:
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

    def run(seed: int, number: int, variant: Variant) -> Run:
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
    document["arms"] = {arm_labels.for_file(variant.label): variant.arm for variant in chosen.arms}
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


class _Chosen(NamedTuple):
    """An experiment as a command line changes it, before it is checked."""

    path: Path
    document: dict[str, Any]
    where: str  # the file and the profile, for messages
    points: list[files.Point]
    arms: list[Variant]
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
    variants = arm_labels.variants(
        document.get("arms"), in_file, arms, congestion_control, path=path, points=points
    )
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
    """What all runs of the experiment share, without arms, seeds and what the points replace."""
    settings = first.model_dump(mode="json", exclude=NOT_OF_A_RUN | {"simulation"})
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


def _validated(chosen: _Chosen, point: files.Point, group: Sequence[Variant]) -> Experiment:
    """The experiment with some of the arms, at a point."""
    path, where = chosen.path, chosen.where
    base = arm_labels.applied(chosen.document, group)
    document = copy.deepcopy(base)
    for key, value in point.changes.items():
        try:
            yaml_input.replace(document, key, value)
        except InputError as error:
            raise InputError(f"{where}: factors: {error}") from None
    replaced = [variant for variant in group if f"arms.{variant.name}" in point.changes]
    try:
        return _checked(arm_labels.applied(document, replaced), path)
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
