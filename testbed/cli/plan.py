"""Chooses the runs of a command, by options or by an earlier plan, and prints their plan."""

from __future__ import annotations

import math
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console

import topologies
from testbed import experiment
from testbed.cli import places
from testbed.cli.options import STORED, Sweep
from testbed.cli.terminal import say, show_table
from testbed.experiment import Run, estimates
from testbed.experiment.estimates import Numbers
from testbed.run import planning, requirements, runner
from testbed.shared import units
from testbed.shared.input_error import InputError

_MOST_TIMELINES, _LONGEST_ENTRY = 6, 300
_UNSUPPORTED = "unsupported here"
_TITLES = {
    "chunks": "chunks per transfer",
    "rtt_over_transfer": "round trip / transfer time",
    "queue_over_bdp": "queue / bandwidth-delay product",
    "communication_share": "communication share",
    "passes": "passes in a burst",
    "round_bytes": "bytes per round, without repeats",
}


@dataclass(kw_only=True)
class Chosen:
    """The runs that a verb executes or shows, and what selected them."""

    results: Path  # the folder of all results
    selections: Sequence[Sweep]  # the options of the command, on top of those planned before
    simulated: bool = False

    @property
    def folder(self) -> Path:
        return self.results / self.runs[0].experiment.name

    @cached_property
    def runs(self) -> list[Run]:
        requirements.refuse(self.as_written, simulated=self.simulated)
        if self.simulated:
            from testbed.run import simulating  # imports torch, which takes a second

            for run in self.as_written:
                simulating.refuse(run)
        return experiment.ordered(self.as_written)

    @cached_property
    def as_written(self) -> list[Run]:
        """The runs in the order of the experiment's file, each once."""
        runs = [run for selection in self.selections for run in selection.loaded()]
        if self.simulated:
            runs = [run.in_virtual_time() for run in runs]
        return list({run.key: run for run in runs}.values())

    def remarks(self) -> list[str]:
        if not self.simulated:
            return []
        from testbed.run import simulating

        return simulating.remarks(self.runs)


def choose(options: Sweep, *, simulated: bool = False) -> Chosen:
    """Choose runs by an experiment's name, or by its folder, on top of what was planned there."""
    if not options.is_folder(options.out):
        return Chosen(results=options.out, selections=[options], simulated=simulated)
    place = places.find(options.name, options.out)
    stored = planning.selections(place.folder) if place.experiment else []
    if not stored:
        raise InputError(
            f"{options.name}: no experiment was planned in this folder; valid: a folder such as "
            f"{options.out}/quick, an experiment's name, FILE.yaml"
        )
    selections: list[Sweep] = []
    for selection in stored:
        planned = Sweep(**{key: selection[key] for key in selection.keys() & set(STORED)})
        if (on_top := _on_top(planned, options)) not in selections:
            selections.append(on_top)
    return Chosen(results=place.results, selections=selections, simulated=simulated)


def _on_top(planned: Sweep, options: Sweep) -> Sweep:
    """Return what was planned, with a command's options: they replace, and `--set` adds."""
    changes = {key: getattr(options, key) for key in STORED if key != "name"}
    changes = {key: value for key, value in changes.items() if value}
    if "settings" in changes:
        changes["settings"] = [*(planned.settings or []), *changes["settings"]]
    if "arms" in changes:  # a congestion control belongs to the arms beside it
        changes.setdefault("congestion_control", None)
    return replace(planned, **changes)


def show_yaml(chosen: Chosen) -> None:
    """Print an experiment with all options and defaults as YAML that makes the same runs."""
    selection, *others = chosen.selections
    if others:
        raise InputError(
            f"{selection.name}: {1 + len(others)} commands planned these runs; valid with --yaml: "
            "an experiment's name or FILE.yaml"
        )
    document = selection.resolved()
    folder = experiment.find(selection.name).parent
    print(f"# resolved by {shlex.join(['./lab', *sys.argv[1:]])}; relative paths begin in {folder}")
    print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100), end="")


class _Standing(NamedTuple):
    """A run, its verdict so far, and what this machine lacks for it; None: nothing."""

    run: Run
    verdict: str | None
    lacking: str | None


def _standings(results: Path, runs: Iterable[Run]) -> list[_Standing]:
    standings = []
    for run in runs:
        lacking = None
        if not run.simulated:
            hosts = run.experiment.topology.all_host_names()
            timeline = run.experiment.resolved_impairments(run.seed)
            lacking = requirements.lacking(run.config(), timeline, hosts)
        standings.append(_Standing(run, runner.directory_of(results, run).verdict(), lacking))
    return standings


def show(chosen: Chosen, console: Console) -> None:
    """Print the runs, how long they take, what characterises them, and their topologies."""
    results, runs = chosen.results, chosen.runs
    numbers = _numbers(chosen) if runs[0].experiment.trains else []  # refuses own code
    remarks = chosen.remarks()
    try:
        remarks += planning.check(results, runs)
    except InputError as error:  # of results that lie there; the plan itself can be shown
        remarks.append(f"not to be executed: {error}")
    for package in requirements.packages_to_install(runs):
        remarks.append(f"./lab run installs Debian's package {package.name}, which is missing")
    show_runs(results, runs, console)
    show_time(results, runs, console)
    if numbers:
        console.print("\nnumbers that do not depend on the speed of machine and links, predicted:")
        show_table(console, ("arm", "factors", *_TITLES.values()), numbers)
        if any(estimates.Prediction(run).is_measured for run in runs):
            console.print("pace real: the share of communication is measured, not chosen")
    _show_topologies(runs, console)
    _show_impairments(chosen.as_written, console)
    for remark in remarks:
        say(console, remark)


def show_runs(results: Path, runs: Sequence[Run], console: Console) -> None:
    rows, arms = [], dict[str, dict[str, None]]()
    for run, verdict, lacking in _standings(results, runs):
        factors = ", ".join(f"{name} {value}" for name, value in run.factors.items())
        word = verdict or (_UNSUPPORTED if lacking else "to do")
        rows.append([run.key, run.arm, str(run.seed), factors, word])
        if lacking:
            arms.setdefault(lacking, {})[run.arm] = None
    show_table(console, ("run", "arm", "seed", "factors", "verdict"), rows)
    for reason, names in arms.items():
        say(console, f"{_UNSUPPORTED}: {', '.join(names)}: {reason}")


def show_time(results: Path, runs: Sequence[Run], console: Console) -> None:
    """Say how long the runs still to be executed take, and which would be ended before."""
    left = [
        standing.run
        for standing in _standings(results, runs)
        if standing.verdict != "ok" and not standing.lacking
    ]
    if not left:
        return
    say(console, estimates.total(left))
    late = [
        (run_s, run.experiment.limits.run_timeout_s)
        for run in left
        if (run_s := estimates.wall_s(run) or 0.0) > run.experiment.limits.run_timeout_s
    ]
    if late:
        longest_s, limit_s = max(late)
        runs_take = "1 run takes" if len(late) == 1 else f"{len(late)} runs take"
        raised_s = math.ceil(1.5 * longest_s / 100) * 100
        say(
            console,
            f"caution: {runs_take} longer than limits.run_timeout_s allows ({limit_s:g} s), and "
            f"would fail; raise it, for example --set limits.run_timeout_s={raised_s}",
        )


def _numbers(chosen: Chosen) -> list[list[str]]:
    """Predict what characterises the runs of one seed, a row for each arm and point."""
    runs = chosen.as_written
    rows = []
    for run in runs:
        if run.seed == runs[0].seed:
            numbers = estimates.Prediction(run).numbers
            point = ", ".join(map(str, run.factors.values()))
            rows.append([run.arm, point, *(_cell(name, numbers) for name in _TITLES)])
    return rows


def _cell(name: str, numbers: Numbers) -> str:
    value = getattr(numbers, name)
    if value is None:
        return "-"
    if name == "communication_share":
        return f"{100 * value:.1f} %"
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def _alike(runs: Sequence[Run], text: Callable[[Run], str]) -> Iterator[tuple[str, Run, str]]:
    """Yield each text with a run that has it, and, if there are others, how many have it."""
    texts = [text(run) for run in runs]
    for text_of_some, count in Counter(texts).items():
        share = f" ({count} of {len(runs)} runs)" if count < len(runs) else ""
        yield text_of_some, runs[texts.index(text_of_some)], share


def _show_impairments(runs: Sequence[Run], console: Console) -> None:
    def text(run: Run) -> str:
        given: dict[str, Any] = {"mode": "json", "exclude_unset": True, "exclude_none": True}
        entries = [_in_flow(entry.model_dump(**given)) for entry in run.experiment.impairments]
        return "".join(f"\n  {entry}" for entry in entries)

    timelines = list(_alike(runs, text))
    for lines, _, share in timelines[:_MOST_TIMELINES]:
        say(console, f"impairments{share}:{lines or ' none'}")
    if len(timelines) > _MOST_TIMELINES:
        say(console, f"and {len(timelines) - _MOST_TIMELINES} more; --yaml shows all")


def _in_flow(entry: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(entry, sort_keys=False, default_flow_style=True, width=math.inf).strip()
    return text if len(text) <= _LONGEST_ENTRY else f"{text[:_LONGEST_ENTRY]}..."


def _show_topologies(runs: Sequence[Run], console: Console) -> None:
    for _, run, share in _alike(runs, lambda run: run.experiment.topology.model_dump_json()):
        topology = topologies.build(run.experiment.topology)
        hosts, switches = len(topology.hosts()), len(topology.switches())
        say(
            console,
            f"\ntopology {Path(run.experiment.topology.name).name}{share}: {hosts} hosts, "
            f"{switches} switches; longest round trip without queues "
            f"{1e3 * topology.longest_rtt_s():g} ms",
        )
        kinds: Counter[str] = Counter()  # such as `100 Mbit/s, 10 ms, queue 150 kB`
        for link in topology.link_options().values():
            rate = units.quantity(link["rate_bps"], "bit/s")
            delay = f"{1e3 * link['delay_s']:g} ms, " if link["delay_s"] else ""
            delay += f"jitter {1e3 * link['jitter_s']:g} ms, " if link["jitter_s"] else ""
            kinds[f"{rate}, {delay}queue {units.quantity(link['queue_bytes'], 'B')}"] += 1
        for words, count in kinds.items():
            say(console, f"{count} {'link' if count == 1 else 'links'}: {words}")
