"""Finds the runs that a verb is to execute or to show, by options or by what was planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from testbed import experiment
from testbed.cli import places
from testbed.cli.options import Selection, Sweep
from testbed.experiment import blocks
from testbed.run import planning, requirements
from testbed.shared.input_error import InputError


class _Selected(NamedTuple):
    """Of one selection: its runs, the part of each if there are parts, and what is done here."""

    runs: list[experiment.Run]
    parts: dict[str, blocks.Shard]
    here: set[str]


@dataclass(kw_only=True)
class Chosen:
    """The runs that a verb is to execute or to show, and what selected them.

    `simulated` says that they happen in virtual time: no lab is going to be built for them.
    """

    results: Path
    selections: Sequence[Selection]
    simulated: bool = False

    @cached_property
    def runs(self) -> list[experiment.Run]:
        """The runs of this machine in the order of their execution, each once.

        Raises:
            InputError: one line that says what is wrong with the experiment.
        """
        here = {key for each in self._selected for key in each.here}
        return [run for run in self.planned if run.key in here]

    @cached_property
    def planned(self) -> list[experiment.Run]:
        """The runs of all machines in the order of their execution, each once.

        Raises:
            InputError: as `runs` does.
        """
        found = {run.key: run for each in self._selected for run in each.runs}
        if not self.simulated:
            requirements.refuse_too_many_workers(found.values())
            requirements.refuse_spraying(found.values())
        requirements.refuse_missing_files(found.values())
        requirements.refuse_wrong_controls(found.values())
        return experiment.ordered(list(found.values()))

    @property
    def shards(self) -> dict[str, str]:
        """Which part of the sweep each run is of, by its key; nothing of what is not divided."""
        parts = {key: part for each in self._selected for key, part in each.parts.items()}
        whole = {run.key for each in self._selected if not each.parts for run in each.runs}
        return {key: str(part) for key, part in parts.items() if key not in whole}

    @cached_property
    def _selected(self) -> list[_Selected]:
        found = []
        for selection in self.selections:
            runs = selection.loaded(results=self.results)
            if self.simulated:
                runs = [run.in_virtual_time() for run in runs]
            if (shard := _shard(selection)) is None:
                found.append(_Selected(runs, {}, {run.key for run in runs}))
                continue
            parts = blocks.shards(runs, shard.of)
            found.append(_Selected(runs, parts, {key for key in parts if parts[key] == shard}))
        return found


def chosen(
    selection: Selection, results: Path, *, planned: bool = False, simulated: bool = False
) -> Chosen:
    """The runs of a selection, whose name may also be a folder.

    The folder of an experiment's results stands for what was planned in it, and so does the name
    of an own experiment that has results. Further options come on top of those that it was planned
    with.

    Args:
        selection: what the user chose.
        results: the folder of results, where the selection's name is not itself a folder.
        planned: without options, what was planned under this name counts, if anything was.
        simulated: the runs happen in virtual time.

    Raises:
        InputError: no such experiment, or no plan in the folder.
    """
    is_folder = selection.is_folder(results)
    if not is_folder and (selection.is_narrowed or not planned):
        return Chosen(results=results, selections=[selection], simulated=simulated)
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
        return Chosen(results=results, selections=[selection], simulated=simulated)
    names = {each.name for each in fields(Sweep)}
    # An empty value was how a version before this one said that there was none.
    given = [{key: each[key] for key in names & each.keys() if each[key] != ""} for each in stored]
    found = [Sweep(**each) for each in given]
    changed: list[Selection] = []
    for each in found:
        if (on_top := _on_top(each, selection)) not in changed:
            changed.append(on_top)
    return Chosen(results=place.results, selections=changed, simulated=simulated)


def _shard(selection: Selection) -> blocks.Shard | None:
    text = selection.shard if isinstance(selection, Sweep) else None
    return None if text is None else blocks.parse(text)


def _on_top(stored: Selection, selection: Selection) -> Selection:
    """What was planned, with the options of a command: they replace, and `--set` adds."""
    given = {
        each.name: getattr(selection, each.name)
        for each in fields(selection)
        if each.name != "name" and getattr(selection, each.name) != each.default
    }
    if "settings" in given:
        given["settings"] = [*(stored.settings or []), *given["settings"]]
    for one, other in (("seed", "seeds"), ("seeds", "seed")):
        if one in given:
            given.setdefault(other, None)
    if "arms" in given:  # a congestion control belongs to the arms that it was given with
        given.setdefault("congestion_control", None)
    return replace(stored, **given)
