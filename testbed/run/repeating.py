"""Repeats a run from its stored configuration, beside the old one, and says what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from testbed.run import planning
from testbed.shared import own_code, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import RunDirectory

FOLDER = "reruns"  # below the results: a folder of results of its own
# Of the manifest: what else decides a run, in the order in which it is told.
_FACTS = (
    *("commit", "cpu", "cpus", "memory_bytes", "machine", "kernel", "distribution", "python"),
    *("packages", "openvswitch", "mininet", "controller", "sysctls", "datapath"),
    *("delayed_by", "user_namespace"),
)


def configuration(directory: Path) -> dict[str, Any]:
    """A run's stored configuration, whose own code is as it was.

    Raises:
        InputError: the directory has none, a script made the run, or a file of own code has changed
            or gone since.
    """
    config = run_directory.read_or_empty(directory / "config.json")
    if not config:
        raise InputError(f"{directory}: holds no configuration that can be read")
    if run_directory.is_of_script(config):
        raise InputError(f"{directory}: a script made this run; run the script again")
    if config.get("simulated"):
        raise InputError(f"{directory}: this run was simulated; './lab simulate' repeats it")
    for place, expected in config.get("code", {}).items():
        try:
            found = own_code.fingerprint(place)
        except InputError as error:
            raise InputError(f"{directory.name}: its own code has gone: {error}") from None
        if found != expected:
            raise InputError(
                f"{directory.name}: {place}: has changed since this run, so nothing can repeat it: "
                f"SHA-256 {found[:12]}, then {expected[:12]}; restore the file, or use ./lab run "
                "for what it is now"
            )
    return config


def place_beside(directory: Path, config: Mapping[str, Any], results: Path) -> RunDirectory:
    """Where the repetition goes; makes its folder a plan of its own, so that it can be reported.

    Args:
        directory: of the run that is repeated.
        config: its configuration.
        results: the folder of results of the repetitions.
    """
    experiment, key = (
        run_directory.require_name(config.get(each), f"{directory / 'config.json'}: {each}")
        for each in ("experiment", "key")
    )
    folder = results / experiment
    folder.mkdir(parents=True, exist_ok=True)
    before, plan = planning.read(directory.parent), planning.read(folder)
    entry = {name: config.get(name) for name in ("key", "arm", "seed", "factors")}
    entries = [each for each in before.get("runs", []) if each.get("key") == key] or [entry]
    others = [each for each in plan.get("runs", []) if each.get("key") != key]
    merged = {**before, **plan, "runs": [*others, *entries], "selections": []}
    run_directory.write_json(
        folder / planning.FILE,
        {"schema": run_directory.SCHEMA, "experiment": config["experiment"], **merged},
    )
    described = directory.parent / "experiment.json"
    if described.exists():
        run_directory.write_json(folder / described.name, run_directory.read_json(described))
    return RunDirectory(folder / key)


def differences(before: Path, after: Path) -> list[str]:
    """What differs between the manifests of two runs: one line for each fact."""
    one, other = (run_directory.read_or_empty(each / "manifest.json") for each in (before, after))
    found = []
    for name, (then, now) in _both(one, other, _FACTS).items():
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            parts = _both(then, now, sorted({*then, *now})).items()
            found += [f"{name} {key}: {a}, now {b}" for key, (a, b) in parts if a != b]
        elif then != now:
            found.append(f"{name}: {then}, now {now}")
    return found


def _both(
    one: Mapping[str, Any], other: Mapping[str, Any], names: Iterable[str]
) -> dict[str, tuple[Any, Any]]:
    return {name: (one.get(name), other.get(name)) for name in names}
