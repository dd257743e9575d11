"""Finds the runs that a verb is to execute or to show, by options or by what was planned."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from testbed import experiment
from testbed.cli import places
from testbed.cli.options import Selection
from testbed.run import planning, requirements
from testbed.shared.input_error import InputError


@dataclass(kw_only=True)
class Chosen:
    """The runs that a verb is to execute or to show, and what selected them.

    `simulated` says that no lab is going to be built for them.
    """

    results: Path
    selections: list[Selection]
    simulated: bool = False

    @cached_property
    def runs(self) -> list[experiment.Run]:
        """The runs in the order of their execution, each once.

        Raises:
            InputError: one line that says what is wrong with the experiment.
        """
        runs = {
            run.key: run for each in self.selections for run in each.loaded(results=self.results)
        }
        if not self.simulated:
            requirements.refuse_too_many_workers(runs.values())
        requirements.refuse_missing_files(runs.values())
        requirements.refuse_wrong_controls(runs.values())
        return experiment.ordered(list(runs.values()))


def chosen(selection: Selection, results: Path, *, planned: bool = False) -> Chosen:
    """The runs of a selection, whose name may also be a folder.

    The folder of an experiment's results stands for what was planned in it, and so does the name
    of an own experiment that has results. Further options come on top of those that it was planned
    with.

    Args:
        selection: what the user chose.
        results: the folder of results, where the selection's name is not itself a folder.
        planned: without options, what was planned under this name counts, if anything was.

    Raises:
        InputError: no such experiment, or no plan in the folder.
    """
    is_folder = selection.is_folder(results)
    if not is_folder and (selection.is_narrowed or not planned):
        return Chosen(results=results, selections=[selection])
    if not is_folder:
        experiment.find(selection.name)
    place = places.find(selection.name, results)
    stored = planning.selections(place.folder) if place.experiment else []
    if is_folder and not stored:
        raise InputError(
            f"{selection.name}: no experiment was planned in this folder; valid: a folder such as "
            f"{results}/quick, an experiment's name, FILE.yaml"
        )
    if not stored:
        return Chosen(results=results, selections=[selection])
    names = {each.name for each in fields(Selection)}
    # An empty value was how a version before this one said that there was none.
    given = [{key: each[key] for key in names & each.keys() if each[key] != ""} for each in stored]
    found = [Selection(**each) for each in given]
    changed: list[Selection] = []
    for each in found:
        if (on_top := _on_top(each, selection)) not in changed:
            changed.append(on_top)
    return Chosen(results=place.results, selections=changed)


def _on_top(stored: Selection, selection: Selection) -> Selection:
    """What was planned, with the options of a command: they replace, and `--set` adds."""
    given = {
        each.name: getattr(selection, each.name)
        for each in fields(Selection)
        if each.name != "name" and getattr(selection, each.name) != each.default
    }
    if "settings" in given:
        given["settings"] = [*(stored.settings or []), *given["settings"]]
    if "arms" in given:  # a congestion control belongs to the arms that it was given with
        given.setdefault("congestion_control", None)
    return replace(stored, **given)
