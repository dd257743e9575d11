"""Experiments by name or path: the YAML file read, sized, validated and expanded into runs."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from testbed.experiment import factors, profiles
from testbed.experiment.run import Run
from testbed.experiment.schema import Experiment
from testbed.shared import own_code, yaml_input
from testbed.shared.registry import did_you_mean
from testbed.shared.yaml_input import InputError

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def load(
    name_or_path: str,
    *,
    overrides: Sequence[str] = (),
    arms: Sequence[str] = (),
    seeds: int | None = None,
    congestion_control: str | None = None,
    controller: str | None = None,
    profile: str = profiles.DEFAULT_PROFILE,
) -> list[Run]:
    """Read an experiment and expand it into runs, in the file's order: seeds, points, arms.

    Args:
        name_or_path: a name in `experiments/`, or the path of a YAML file.
        overrides: `key.path=value` texts that replace values of the file.
        arms: keep only these.
        seeds: use this many seeds, starting with the file's own.
        congestion_control: replaces that of every arm that is kept.
        controller: replaces the SDN framework.
        profile: the machine that it is sized for.

    Raises:
        InputError: one line that names the file, the key, the value and what would be valid.
    """
    path = find(name_or_path)
    document = yaml_input.read(path)
    try:
        profiles.apply(document, profile)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    options = [(f"--set {text}", yaml_input.override(document, text)) for text in overrides]
    if controller is not None:
        document["controller"] = controller
        options.append((f"--controller {controller}", "controller"))
    if congestion_control is not None:
        option = f"--congestion-control {congestion_control}"
        options += [(option, key) for key in _swap(document, arms, congestion_control)]
    where = f"{path}: profile {profile}" if profile != profiles.DEFAULT_PROFILE else str(path)
    try:
        points = list(factors.points(document.get("factors") or {}))
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    experiments = [(point, _validated(document, point, path, where, options)) for point in points]
    first = experiments[0][1]
    wanted_arms = list(arms) or list(first.arms)
    for arm in wanted_arms:
        if arm not in first.arms:
            valid = f"valid: {', '.join(first.arms)}{did_you_mean(arm, first.arms)}"
            raise InputError(f"--arms: {path}: unknown arm {arm!r}; {valid}")
    wanted_seeds = _extend(first.seeds, seeds)
    fingerprint = functools.cache(own_code.fingerprint)
    code = {
        (number, arm): {place: fingerprint(place) for place in experiment.own_code(arm)}
        for number, (_, experiment) in enumerate(experiments)
        for arm in wanted_arms
    }
    return [
        Run(
            experiment=experiment,
            arm=arm,
            seed=seed,
            factors=point.values,
            folder=path.resolve().parent,
            source=path,
            profile=profile,
            code=code[number, arm],
        )
        for seed in wanted_seeds
        for number, (point, experiment) in enumerate(experiments)
        for arm in wanted_arms
    ]


def find(name_or_path: str) -> Path:
    """The YAML file of an experiment's name or path.

    Raises:
        InputError: there is none; the message lists the names that exist.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        return path
    found = EXPERIMENTS / f"{name_or_path}.yaml"
    if "/" in name_or_path or not found.is_file():
        raise InputError(
            f"unknown experiment {name_or_path!r}; valid: {', '.join(names())}, FILE.yaml"
        )
    return found


def profile_names(name_or_path: str) -> list[str]:
    """The profiles of an experiment, the default one first.

    Raises:
        InputError: it cannot be read.
    """
    return profiles.names(yaml_input.read(find(name_or_path)))


def names() -> list[str]:
    """The experiments that come with the project."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


def _extend(seeds: Sequence[int], count: int | None) -> list[int]:
    if count is None:
        return list(seeds)
    further = (seed for seed in itertools.count(1) if seed not in seeds)
    return list(itertools.islice(itertools.chain(seeds, further), count))


def _swap(document: dict[str, Any], arms: Sequence[str], congestion_control: str) -> list[str]:
    """Replace the congestion control of these arms, or else of all; return the keys replaced.

    What is no mapping stays as it is: the schema refuses it.
    """
    given = document.get("arms")
    if not isinstance(given, dict):
        return []
    swapped = {
        name: {**arm, "congestion_control": congestion_control}
        for name, arm in given.items()
        if isinstance(arm, dict) and (not arms or name in arms)
    }
    document["arms"] = given | swapped
    return [f"arms.{name}.congestion_control" for name in swapped]


def _to_blame(location: Sequence[int | str], options: Sequence[tuple[str, str]]) -> str:
    """The options that replaced something at, above or below a problem's place."""
    place = "".join(f"{part}." for part in location)
    found = [
        option
        for option, key in options
        if place.startswith(f"{key}.") or f"{key}.".startswith(place)
    ]
    return "".join(f"{option}: " for option in dict.fromkeys(found))


def _validated(
    document: dict[str, Any],
    point: factors.Point,
    path: Path,
    where: str,
    options: Sequence[tuple[str, str]],
) -> Experiment:
    """The experiment at a point; `options` are (option of the command line, key it replaced)."""
    resolved = json.loads(json.dumps(document))  # a deep copy of plain data
    for key, value in point.changes.items():
        try:
            yaml_input.replace(resolved, key, value)
        except InputError as error:
            raise InputError(f"{where}: factors: {error}") from None
    try:
        return Experiment.model_validate(resolved, context={"folders": [path.parent]})
    except ValidationError as error:
        location = yaml_input.problems(error, Experiment)[0][0]
        blamed = _to_blame(location, options)
        raise InputError(f"{blamed}{where}: {yaml_input.explain(error, Experiment)}") from None
