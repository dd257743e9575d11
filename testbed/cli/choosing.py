"""Finds the runs that a verb is to execute or to show, by options or by what was planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from testbed import experiment
from testbed.cli import places
from testbed.cli.options import STORED, Execution, Sweep, names_in
from testbed.run import planning, requirements
from testbed.shared.input_error import InputError


@dataclass(kw_only=True)
class Chosen:
    """The runs that a verb is to execute or to show, and what selected them."""

    options: Sweep  # of the command
    results: Path  # the folder of all results
    selections: Sequence[Sweep]  # the options alone, or with what was planned before
    simulated: bool = False  # they happen in virtual time, not in a lab

    @property
    def execution(self) -> Execution:
        """The options of a command that executes runs."""
        assert isinstance(self.options, Execution)
        return self.options

    @property
    def folder(self) -> Path:
        """The folder of the experiment's results."""
        return self.results / self.runs[0].experiment.name

    @cached_property
    def runs(self) -> list[experiment.Run]:
        """The runs in the order of their execution, each once."""
        requirements.refuse(self.as_written, simulated=self.simulated)
        return experiment.ordered(self.as_written)

    @cached_property
    def as_written(self) -> list[experiment.Run]:
        """The runs in the order of the experiment's file, each once."""
        runs = [run for selection in self.selections for run in selection.loaded()]
        if self.simulated:
            runs = [run.in_virtual_time() for run in runs]
        return list({run.key: run for run in runs}.values())

    @property
    def capture(self) -> list[str]:
        """The hosts that `--pcap` names; InputError for one that the topology has not."""
        valid, pcap = self.runs[0].experiment.topology.host_names(), self.options.pcap
        names = names_in(pcap, "--pcap")
        for name in names:
            if name not in valid:
                raise InputError(f"--pcap {pcap}: unknown host {name!r}; valid: {', '.join(valid)}")
        return names


def chosen(options: Sweep, *, simulated: bool = False) -> Chosen:
    """The runs that options choose, by name or folder, on top of what was planned there."""
    if not options.is_folder(options.out):
        return Chosen(
            options=options, results=options.out, selections=[options], simulated=simulated
        )
    place = places.find(options.name, options.out)
    stored = planning.selections(place.folder) if place.experiment else []
    if not stored:
        raise InputError(
            f"{options.name}: no experiment was planned in this folder; valid: a folder such as "
            f"{options.out}/quick, an experiment's name, FILE.yaml"
        )
    changed: list[Sweep] = []
    for each in stored:
        planned = Sweep(**{key: each[key] for key in each.keys() & set(STORED)})
        if (on_top := _on_top(planned, options)) not in changed:
            changed.append(on_top)
    return Chosen(options=options, results=place.results, selections=changed, simulated=simulated)


def _on_top(planned: Sweep, options: Sweep) -> Sweep:
    """What was planned, with the options of a command: they replace, and `--set` adds."""
    given = {key: getattr(options, key) for key in STORED if key != "name"}
    given = {key: value for key, value in given.items() if value}
    if "settings" in given:
        given["settings"] = [*(planned.settings or []), *given["settings"]]
    if "arms" in given:  # a congestion control belongs to the arms that it was given with
        given.setdefault("congestion_control", None)
    return replace(planned, **given)
