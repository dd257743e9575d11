"""Takes the critical rounds of finished runs: `phases: {detector: schedule, from: RUN}`.

RUN is the name of a run, `EXPERIMENT/RUN`, or a run's folder; or `EXPERIMENT/ARM`, where each run
takes the rounds of that arm's run with the same seed and the same point of the sweep. The plan of
an experiment keeps what was taken, so that `run` works when that run has been removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from testbed.experiment.schema import Experiment
from testbed.shared import jsonl, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.registry import did_you_mean
from testbed.shared.run_directory import PLAN, RunDirectory, key_of
from testbed.training.phases import schedule

Spans = list[tuple[int, int]]
_Run = tuple[int, dict[str, Any], Path]  # a run's seed, point of the sweep, and directory
_WHOLE = ("ok", "invalid")  # in an invalid run the machine was too slow, yet all rounds took place
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError)  # reading files raises
_CONFIGS = "*/*/config.json"


def as_planned(experiment: Experiment) -> dict[str, Any]:
    """What a plan keeps of a run: its phases, where they were taken from another run."""
    phases = experiment.phases
    if not isinstance(phases, schedule.Parameters) or phases.from_ is None:
        return {}
    return {"rounds": experiment.rounds, "phases": phases.model_dump(mode="json")}


class FinishedRuns:
    """The runs whose critical rounds may be taken."""

    def __init__(self, *, folders: Sequence[Path], results: Path) -> None:
        self._folders = [*folders, results]
        self._results = results
        self._critical = cache(self._critical_rounds)

    def give_phases(
        self, experiment: Experiment, seed: int, factors: Mapping[str, Any]
    ) -> Experiment:
        """The experiment as a run executes it: the rounds that it wants are taken."""
        phases = experiment.phases
        if not isinstance(phases, schedule.Parameters) or phases.critical_rounds is not None:
            return experiment
        name, rounds = str(phases.from_), experiment.rounds
        try:
            critical = self._critical(name, seed, json.dumps(factors))
            if len(critical) != rounds:
                raise InputError(
                    f"{name!r}: this run has {len(critical)} rounds, the experiment {rounds}; "
                    "valid: a run with as many rounds"
                )
            taken = _in_spans(critical)
        except InputError as error:
            kept = _kept(self._results / experiment.name, (rounds, name, seed, factors))
            if kept is None:
                raise InputError(f"phases.from: {error}") from None
            taken = kept
        given = phases.model_copy(update={"critical_rounds": taken})
        return experiment.model_copy(update={"phases": given})

    def _critical_rounds(self, name: str, seed: int, factors: str) -> list[bool]:
        """Whether each round was critical, in the run that `name` means; `factors` are JSON."""
        directory = self._directory(name, seed, json.loads(factors))
        verdict = RunDirectory(directory).verdict()
        if verdict not in _WHOLE:
            state = f"ended as {verdict}" if verdict else "is not finished"
            raise InputError(f"{name!r}: this run {state}; valid: a run that is ok or invalid")
        log = directory / "events" / "rounds.jsonl"
        try:
            records = jsonl.read(log)
            if not records or [record["round"] for record in records] != [*range(len(records))]:
                raise ValueError("rounds are missing")
            return [bool(record["critical"]) for record in records]
        except _DAMAGED as error:
            raise InputError(f"{name!r}: {log}: cannot be read: {error}") from None

    def _directory(self, name: str, seed: int, factors: dict[str, Any]) -> Path:
        places = [folder / name for folder in self._folders] if name.strip("/.") else []
        if "/" not in name:
            places += [path / name for path in sorted(self._results.glob("*"))]
        with suppress(OSError):  # a name that no file can have
            for place in places:
                if (place / "config.json").is_file():
                    return place
                if (running := RunDirectory(place).partial).is_dir():
                    return running
            for place in places:
                if runs := list(_of_arm(place, name)):
                    return _fitting(runs, name, seed, factors)
        found = {path.parent for path in self._results.glob(_CONFIGS)}
        runs_there = {
            f"{run.parent.name}/{run.name}" for run in found if key_of(run.name) == run.name
        }
        arms = {re.sub(r"-s\d+-\w+$", "", run) for run in runs_there}
        looked = ", ".join(dict.fromkeys(str(folder.resolve()) for folder in self._folders))
        raise InputError(
            f"{name!r}: no such run or arm; looked in {looked}; valid: a run's name, "
            "EXPERIMENT/RUN, EXPERIMENT/ARM, or a run's folder"
            f"{did_you_mean(name, runs_there | arms)}"
        )


def _of_arm(place: Path, name: str) -> Iterator[_Run]:
    """The finished runs of an arm, but for those that took their own phases by `name`."""
    for path in sorted(place.parent.glob("*/config.json")):
        config = run_directory.read_or_empty(path)
        whole = RunDirectory(path.parent).verdict() in _WHOLE
        own = config.get("arm") == place.name and config.get("phases", {}).get("from") != name
        if whole and own and key_of(path.parent.name) == path.parent.name:
            yield config["seed"], config.get("factors", {}), path.parent


def _fitting(runs: Sequence[_Run], name: str, seed: int, factors: dict[str, Any]) -> Path:
    """The run of this seed; of several the one at the same point of the sweep."""
    of_seed = [(point, directory) for own_seed, point, directory in runs if own_seed == seed]
    if not of_seed:
        seeds = ", ".join(map(str, sorted({own_seed for own_seed, _, _ in runs})))
        raise InputError(f"{name!r}: no finished run with seed {seed}; seeds that it has: {seeds}")
    at_point = [directory for point, directory in of_seed if len(of_seed) == 1 or point == factors]
    if len(at_point) != 1:
        listed = ", ".join(directory.name for _, directory in of_seed[:3])
        listed += ", ..." * (len(of_seed) > 3)
        raise InputError(f"{name!r}: {len(of_seed)} runs with seed {seed}; valid: one of {listed}")
    return at_point[0]


def _in_spans(critical: Sequence[bool]) -> Spans:
    """The rounds that are critical as `(first, last)` pairs."""
    groups = [list(each) for _, each in groupby(range(len(critical)), key=critical.__getitem__)]
    return [(numbers[0], numbers[-1]) for numbers in groups if critical[numbers[0]]]


def _kept(folder: Path, run: tuple[object, ...]) -> Spans | None:
    """What an earlier plan of the same experiment took."""
    with suppress(*_DAMAGED):
        for entry in run_directory.read_json(folder / PLAN)["runs"]:
            phases = entry.get("phases", {})
            given = (entry.get("rounds"), phases.get("from"), entry["seed"], entry["factors"])
            if given == run:
                return [(first, last) for first, last in phases["critical_rounds"]]
    return None
