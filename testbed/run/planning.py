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
    """The plan of an experiment's folder; empty where there is none that can be read."""
    return run_directory.read_or_empty(folder / FILE)


def selections(folder: Path) -> list[dict[str, Any]]:
    """What the commands selected that made the plan: the options of each, by name."""
    found = read(folder).get("selections")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def extend(
    results: Path,
    runs: Sequence[Run],
    selections: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Add runs of one experiment to its plan, in their order; returns remarks for the user."""
    experiment = runs[0].experiment
    folder = results / experiment.name
    plan, remarks = _extended(folder, runs)
    plan["commands"] = _added(plan["commands"], shlex.join(["./lab", *sys.argv[1:]]))
    for selection in selections:
        plan["selections"] = _added(plan["selections"], dict(selection))
    document = {
        **experiment.model_dump(mode="json"),
        "arms": _in_order(experiment.arms, [each["arm"] for each in plan["runs"]]),
        "factors": plan.pop("factors"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("experiment.json", document), (FILE, plan)):
        run_directory.write_json(folder / name, {"schema": run_directory.SCHEMA, **content})
    return remarks


def check(results: Path, runs: Sequence[Run]) -> list[str]:
    """The remarks of `extend`, which is not done."""
    return _extended(results / runs[0].experiment.name, runs)[1]


def _extended(folder: Path, runs: Sequence[Run]) -> tuple[dict[str, Any], list[str]]:
    """The plan with these runs, and remarks."""
    experiment, name = runs[0].experiment, runs[0].experiment.name
    if name == INDEX:
        raise InputError(f"{runs[0].source}: name: {name!r}: valid: another; it is the index's")
    stored = read(folder)
    _refuse_mixing(folder, stored, runs[0])
    entries = list(map(_entry, runs))
    settings = _portable(runs[0].settings, runs)
    definitions = {run.arm: _portable(run.definition, runs) for run in runs}
    keys = {entry["key"] for entry in entries}
    left = [each for each in stored.get("runs", []) if each["key"] not in keys]
    remarks = _cautions(runs)

    if different := _differences(stored.get("settings", {}), settings):
        _refuse_measured(folder, left, different, name)
        stored, left = {}, []
    known = stored.get("definitions", {})
    for arm in definitions.keys() & known.keys():
        if different := _differences(known[arm], definitions[arm], f"arm {arm}: "):
            of_arm = [each for each in left if each["arm"] == arm]
            _refuse_measured(folder, of_arm, different, name)
            left = [each for each in left if each["arm"] != arm]
    code = {(place, sha256) for entry in entries for place, sha256 in entry["code"].items()}
    places = {place for place, _ in code}
    # Files of own code that a run executed in another version.
    changed = {
        each["key"]: {
            place for place, of_it in each.get("code", {}).items() if (place, of_it) not in code
        }
        & places
        for each in left
    }
    old = [each for each in left if changed[each["key"]]]
    left = [each for each in left if each not in old]
    if measured := _measured(folder, old):
        files = sorted(set().union(*changed.values()))
        remarks.append(
            f"{folder}: {measured} leave the tables and stay on disk: "
            f"{', '.join(files)} changed since"
        )
    same = {_place(entry) for entry in entries}
    twice = [each for each in left if _place(each) in same]
    _refuse_measured(folder, twice, ["the same arm, seed and point with other settings"], name)
    left = [each for each in left if each not in twice]
    plan = {
        "experiment": name,
        "commands": stored.get("commands", []),
        "selections": stored.get("selections", []),
        "profile": runs[0].profile,
        **({"simulated": True} if runs[0].simulated else {}),
        "order": ORDER_RULE,
        "settings": settings,
        "definitions": {**known, **definitions},
        "factors": _levels(folder if left else None, experiment.model_dump(mode="json")["factors"]),
        "runs": [*left, *entries],
    }
    return plan, remarks


def _cautions(runs: Sequence[Run]) -> list[str]:
    """What arms know of the profiles that they name, each once."""
    cautions = (
        f"{run.arm}: {caution}"
        for run in runs
        if run.experiment.trains
        and (caution := run.experiment.protocol_arm(run.name_in_file).caution)
    )
    return list(dict.fromkeys(cautions))


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
    """How many of these runs are ok, in words; empty for none."""
    keys = [run_directory.require_name(entry["key"], f"{folder / FILE}: key") for entry in entries]
    count = sum(RunDirectory(folder / key).verdict() == "ok" for key in keys)
    return f"{count} ok run{'s' * (count != 1)}" if count else ""


def _refuse_measured(
    folder: Path, entries: Sequence[Mapping[str, Any]], different: Sequence[str], name: str
) -> None:
    """Refuse to replace runs that are ok; those that are not hold no numbers to lose."""
    if measured := _measured(folder, entries):
        more = f" and {len(different) - 1} more" if different[1:] else ""
        raise InputError(
            f"{folder}: holds {measured} of {name!r}, and these do not belong "
            f"together with them: {different[0]}{more}; valid: --out DIR, another name in the "
            f"file, or './lab clean {folder}' first"
        )


def _differences(there: Any, here: Any, path: str = "") -> list[str]:
    """Where two documents differ, in words; a key that one of them lacks is of another version."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        return [
            difference
            for key in there
            if key in here
            for difference in _differences(there[key], here[key], f"{path}{key}.")
        ]
    if there == here:
        return []
    name = path.rstrip(".")
    if isinstance(there, list) and isinstance(here, list):
        if len(there) != len(here):
            return [f"{name} has {len(there)} entries there, {len(here)} here"]
        there, here = (dict(enumerate(entries)) for entries in (there, here))
        return _differences(there, here, path)
    return [f"{name} is {json.dumps(there)} there, {json.dumps(here)} here"]


def _portable(document: Mapping[str, Any], runs: Iterable[Run]) -> dict[str, Any]:
    """A document with own code by its file's name: the same files elsewhere are the same."""
    text = json.dumps(document)
    for place in {place for run in runs for place in run.code}:
        text = text.replace(json.dumps(place)[1:-1], Path(place).name)
    return dict(json.loads(text))


def _added(known: Sequence[Any], new: Any) -> list[Any]:
    return [*known, *([new] if new not in known else [])]


def _in_order(names: Iterable[str], labels: Iterable[str]) -> list[str]:
    """The labels in the order of the experiment's arms, changed ones behind their arm."""
    order = list(names)
    last = len(order)

    def place(label: str) -> tuple[int, bool]:
        name, changed, _ = label.partition("@")
        return (order.index(name) if name in order else last), bool(changed)

    return sorted(dict.fromkeys(labels), key=place)


def _levels(folder: Path | None, new: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The levels of each factor: those of earlier commands that still count, then further ones."""
    stored = run_directory.read_or_empty(folder / "experiment.json") if folder else {}
    levels = {name: list(known) for name, known in stored.get("factors", {}).items()}
    for name, values in new.items():
        known = levels.setdefault(name, [])
        known += [value for value in values if value not in known]
    return levels
