"""The plan of an experiment's folder: what was planned under its name, by one command or several.

A plan grows: a command with other arms, seeds or points adds its runs.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.experiment import Run
from testbed.experiment.run import ORDER_RULE
from testbed.shared import run_directory
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import RunDirectory

FILE = run_directory.PLAN
INDEX = "report"  # the folder beside the experiments that links to their reports


def read(folder: Path) -> dict[str, Any]:
    """Read the plan of an experiment's folder; empty where there is none that can be read."""
    return run_directory.read_or_empty(folder / FILE)


def selections(folder: Path) -> list[dict[str, Any]]:
    """Return the options of the commands that made the plan, by name."""
    stored = read(folder).get("selections")
    entries = stored if isinstance(stored, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def extend(
    results: Path,
    runs: Sequence[Run],
    selections: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Add runs of one experiment to its plan, in their order; return remarks for the user."""
    experiment = runs[0].experiment
    folder = results / experiment.name
    plan, remarks = _extended(folder, runs)
    plan["commands"] = _added(plan["commands"], shlex.join(["./lab", *sys.argv[1:]]))
    for selection in selections:
        plan["selections"] = _added(plan["selections"], dict(selection))
    document = {
        **experiment.model_dump(mode="json"),
        "arms": _in_order(experiment.arms, [entry["arm"] for entry in plan["runs"]]),
        "factors": plan.pop("factors"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("experiment.json", document), (FILE, plan)):
        run_directory.write_json(folder / name, {"schema": run_directory.SCHEMA, **content})
    return remarks


def check(results: Path, runs: Sequence[Run]) -> list[str]:
    """Return the remarks of `extend`, and store nothing."""
    return _extended(results / runs[0].experiment.name, runs)[1]


def _extended(folder: Path, runs: Sequence[Run]) -> tuple[dict[str, Any], list[str]]:
    """Return the plan with these runs, and remarks."""
    experiment, name = runs[0].experiment, runs[0].experiment.name
    if name == INDEX:
        raise InputError(f"{runs[0].source}: name: {name!r}: valid: another; it is the index's")
    stored = read(folder)
    _refuse_mixing(folder, stored, runs[0])
    entries = list(map(_entry, runs))
    settings = _portable(runs[0].settings, runs)
    definitions = {run.arm: _portable(run.definition, runs) for run in runs}
    keys = {entry["key"] for entry in entries}
    left = [entry for entry in stored.get("runs", []) if entry["key"] not in keys]
    trained = (run for run in runs if run.experiment.trains)
    cautions = ((run.arm, run.experiment.protocol_arm(run.name_in_file).caution) for run in trained)
    remarks = list(dict.fromkeys(f"{arm}: {caution}" for arm, caution in cautions if caution))

    if difference := _difference(stored.get("settings", {}), settings):
        _refuse_measured(folder, left, difference, name)
        stored, left = {}, []
    earlier = stored.get("definitions", {})
    for arm in definitions.keys() & earlier.keys():
        if difference := _difference(earlier[arm], definitions[arm], f"arm {arm}: "):
            of_arm = [entry for entry in left if entry["arm"] == arm]
            _refuse_measured(folder, of_arm, difference, name)
            left = [entry for entry in left if entry["arm"] != arm]
    code = dict(of_file for entry in entries for of_file in entry["code"].items())
    changed = {  # own code that a run executed in another version
        entry["key"]: {file for file, sha256 in entry["code"].items() if code.get(file) != sha256}
        & code.keys()
        for entry in left
        if "code" in entry
    }
    old = [entry for entry in left if changed.get(entry["key"])]
    left = [entry for entry in left if entry not in old]
    if measured := _measured(folder, old):
        files = ", ".join(sorted(set().union(*changed.values())))
        remarks.append(
            f"{folder}: {measured} leave the tables and stay on disk: {files} changed since"
        )
    same = {_place(entry) for entry in entries}
    twice = [entry for entry in left if _place(entry) in same]
    _refuse_measured(folder, twice, "the same arm, seed and point with other settings", name)
    left = [entry for entry in left if entry not in twice]
    plan = {
        "experiment": name,
        "commands": stored.get("commands", []),
        "selections": stored.get("selections", []),
        "profile": runs[0].profile,
        **({"simulated": True} if runs[0].simulated else {}),
        "order": ORDER_RULE,
        "settings": settings,
        "definitions": {**earlier, **definitions},
        "factors": _levels(folder if left else None, experiment.model_dump(mode="json")["factors"]),
        "runs": [*left, *entries],
    }
    return plan, remarks


def _refuse_mixing(folder: Path, stored: Mapping[str, Any], run: Run) -> None:
    """Refuse to put simulated runs and those of a lab into one table."""
    words = {True: "simulated", False: "of a lab"}
    if stored.get("runs") and (there := bool(stored.get("simulated"))) != run.simulated:
        raise InputError(
            f"{folder}: its runs are {words[there]}, and these are {words[run.simulated]}; "
            f"valid: ./lab {'simulate' if there else 'run'} goes on with those, --out DIR, or "
            f"'./lab clean {folder}' first"
        )


def _entry(run: Run) -> dict[str, Any]:
    code = {Path(place).name: sha256 for place, sha256 in run.code.items()}
    entry = {"key": run.key, "arm": run.arm, "seed": run.seed, "factors": run.factors}
    return {**entry, "code": code}


def _place(entry: Mapping[str, Any]) -> str:
    return json.dumps([entry["arm"], entry["seed"], entry["factors"]], sort_keys=True)


def _measured(folder: Path, entries: Iterable[Mapping[str, Any]]) -> str:
    """Count the ok runs among these, in words; empty for none."""
    keys = [run_directory.require_name(entry["key"], f"{folder / FILE}: key") for entry in entries]
    count = sum(RunDirectory(folder / key).verdict() == "ok" for key in keys)
    return f"{count} ok run{'s' * (count != 1)}" if count else ""


def _refuse_measured(
    folder: Path, entries: Sequence[Mapping[str, Any]], difference: str, name: str
) -> None:
    """Refuse to replace runs that are ok; those that are not hold no numbers to lose."""
    if measured := _measured(folder, entries):
        raise InputError(
            f"{folder}: holds {measured} of {name!r}, and these do not belong together with them: "
            f"{difference}; valid: --out DIR, another name in the file, or './lab clean {folder}' "
            "first"
        )


def _difference(there: Any, here: Any, path: str = "") -> str:
    """Say where two documents differ first; a key that one of them lacks is of another version."""
    if there == here:
        return ""
    name = path.rstrip(".")
    if isinstance(there, list) and isinstance(here, list):
        if len(there) != len(here):
            return f"{name} has {len(there)} entries there, {len(here)} here"
        there, here = dict(enumerate(there)), dict(enumerate(here))
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        shared = (key for key in there if key in here)
        differences = (_difference(there[key], here[key], f"{path}{key}.") for key in shared)
        return next(filter(None, differences), "")
    return f"{name} is {json.dumps(there)} there, {json.dumps(here)} here"


def _portable(document: Mapping[str, Any], runs: Iterable[Run]) -> dict[str, Any]:
    """Name own code by its file alone: the same files elsewhere are the same."""
    text = json.dumps(document)
    for place in {place for run in runs for place in run.code}:
        text = text.replace(json.dumps(place)[1:-1], Path(place).name)
    return dict(json.loads(text))


def _added(entries: Sequence[Any], new: Any) -> list[Any]:
    return [*entries, *([new] if new not in entries else [])]


def _in_order(names: Iterable[str], labels: Iterable[str]) -> list[str]:
    """Sort labels by the order of the experiment's arms, changed ones behind their arm."""
    order = list(names)
    last = len(order)

    def place(label: str) -> tuple[int, bool]:
        name, changed, _ = label.partition("@")
        return (order.index(name) if name in order else last), bool(changed)

    return sorted(dict.fromkeys(labels), key=place)


def _levels(folder: Path | None, new: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the levels of factors: of earlier commands that still count, then further ones."""
    stored = run_directory.read_or_empty(folder / "experiment.json") if folder else {}
    levels = {name: list(values) for name, values in stored.get("factors", {}).items()}
    for name, values in new.items():
        of_factor = levels.setdefault(name, [])
        of_factor += [value for value in values if value not in of_factor]
    return levels
