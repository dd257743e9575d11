"""Prints a plan: its runs, the time they take, and the numbers that characterise them."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from rich.console import Console

import topologies
from testbed import experiment
from testbed.cli.terminal import say, show_table
from testbed.experiment import Run, estimates
from testbed.experiment.estimates import Numbers
from testbed.run import requirements, runner
from testbed.shared import sizes
from testbed.shared.yaml_input import InputError
from testbed.workload.torchrun import Torchrun

if TYPE_CHECKING:
    from testbed.cli.choosing import Chosen

_UNSUPPORTED = "unsupported here"
_TITLES = {
    "chunks": "chunks per transfer",
    "rtt_over_transfer": "round trip / transfer time",
    "queue_over_bdp": "queue / bandwidth-delay product",
    "communication_share": "communication share",
    "passes": "passes in a burst",
    "round_bytes": "bytes per round, without repeats",
}


class _Standing(NamedTuple):
    """A run, its verdict so far, and what this machine lacks for it; None: nothing."""

    run: Run
    verdict: str | None
    lacking: str | None

    def cells(self) -> list[str]:
        run = self.run
        factors = ", ".join(f"{name} {value}" for name, value in run.factors.items())
        return [run.key, run.arm, str(run.seed), factors]


def _standings(results: Path, runs: Iterable[Run]) -> list[_Standing]:
    found = []
    for run in runs:
        lacking = None
        if not run.simulated:
            hosts = run.experiment.topology.all_host_names()
            timeline = run.experiment.resolved_impairments(run.seed)
            lacking = requirements.lacking(run.config(), timeline, hosts)
        found.append(_Standing(run, runner.directory_of(results, run).verdict(), lacking))
    return found


def records(results: Path, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What `show_runs` prints, for programs; a verdict is null where there is none yet."""
    return [
        facts(each.run) | {"verdict": each.verdict, "lacking": each.lacking}
        for each in _standings(results, runs)
    ]


def facts(run: Run) -> dict[str, Any]:
    """Which run it is, for programs."""
    return {"run": run.key, "arm": run.arm, "seed": run.seed, "factors": run.factors}


def show_runs(results: Path, runs: Sequence[Run], console: Console) -> None:
    """Print the runs in the order of their execution, each with its verdict so far."""
    standings = _standings(results, runs)
    rows = (
        [*each.cells(), each.verdict or (_UNSUPPORTED if each.lacking else "to do")]
        for each in standings
    )
    show_table(console, ("run", "arm", "seed", "factors", "verdict"), rows)
    _show_lacking(standings, console)


def _show_lacking(standings: Iterable[_Standing], console: Console) -> None:
    """Print what this machine lacks for some of the runs, and for which arms."""
    arms: dict[str, dict[str, None]] = {}
    for each in standings:
        if each.lacking:
            arms.setdefault(each.lacking, {})[each.run.arm] = None
    for reason, names in arms.items():
        say(console, f"{_UNSUPPORTED}: {', '.join(names)}: {reason}")


def show_rounds(runs: Sequence[Run], console: Console) -> None:
    """Say, of a script for torchrun, what follows from the number of steps that it takes."""
    if not isinstance(runs[0].experiment.workload, Torchrun):
        return
    line = "rounds: one for each step that the script takes"
    if expected := runs[0].experiment.rounds:
        line += f"; {expected} are expected. "
        timelines = (entry for r in runs for entry in r.experiment.resolved_impairments(r.seed))
        if hit := [number for entry in timelines for number in entry.get("rounds", ())]:
            line += f"If it takes fewer than {1 + max(hit)}, impairments do not begin, and runs are"
            line += " invalid. "
        line += "If it takes more, nothing hits these. Either way the report lacks maxima"
    say(console, line)


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


def show(chosen: Chosen, console: Console) -> None:
    """Print the runs, the numbers that characterise them, and their topologies."""
    show_runs(chosen.results, chosen.runs, console)
    if chosen.simulated:
        show_total(chosen.results, chosen.runs, console)
    show_rounds(chosen.runs, console)
    if chosen.runs[0].experiment.trains:
        _show_numbers(chosen, console)
    show_topologies(chosen.runs, console)


def _show_numbers(chosen: Chosen, console: Console) -> None:
    """Print the numbers of each arm and point, of one seed."""
    runs = chosen.as_written
    firsts = [run for run in runs if run.seed == runs[0].seed]
    console.print("\nnumbers that do not depend on the speed of machine and links, predicted:")
    rows = []
    for run in firsts:
        numbers = estimates.Prediction(run).numbers
        point = ", ".join(map(str, run.factors.values()))
        rows.append([run.arm, point, *(_cell(name, numbers) for name in _TITLES)])
    show_table(console, ("arm", "factors", *_TITLES.values()), rows)
    if any(run.experiment.training.pace.kind == "real" for run in firsts):
        console.print("pace real: the share of communication is measured, not chosen")


def show_total(results: Path, runs: Sequence[Run], console: Console) -> None:
    """Say in one line how long what is still to be executed takes."""
    if found := _estimated(results, _standings(results, runs), console):
        _say_total(found, console)


def _estimated(
    results: Path, standings: Iterable[_Standing], console: Console
) -> list[tuple[Run, estimates.Duration]]:
    """The runs still to be executed that this machine lacks nothing for, and how long they take."""
    left = [each.run for each in standings if each.verdict != "ok" and not each.lacking]
    kinds = [json.dumps([run.arm, run.factors]) for run in left]  # seeds take alike
    firsts = dict(zip(reversed(kinds), reversed(left), strict=True))

    def say_what_is_measured(words: str) -> None:
        console.print(f"{words} ...", style="dim", highlight=False)

    if not left:
        return []
    found = estimates.of_runs(results, list(firsts.values()), say_what_is_measured)
    by_kind = dict(zip(firsts, found, strict=True))
    return [(run, by_kind[kind]) for run, kind in zip(left, kinds, strict=True)]


def show_durations(results: Path, runs: Sequence[Run], console: Console) -> None:
    """Print the runs still to be executed, in their order, and about how long they take."""
    left = [each for each in _standings(results, runs) if each.verdict != "ok"]
    _show_lacking(left, console)
    if not left:
        console.print("nothing to do: all runs are ok")
        return
    found = _estimated(results, left, console)
    by_key = {run.key: duration for run, duration in found}
    rows = []
    for number, standing in enumerate(left, start=1):
        taken = ("-", "-", _UNSUPPORTED)  # such a run ends before anything is built
        if each := by_key.get(standing.run.key):
            source = f"{each.earlier} earlier" if each.earlier else "prediction"
            if not each.earlier and not standing.run.experiment.trains:
                source = "time limits"
            taken = (estimates.in_words(each.run_s), sizes.in_words(each.disk_bytes), source)
            if each.run_s is None:
                taken = ("unknown", "unknown", "no time limit")
        rows.append([str(number), *standing.cells(), *taken])
    headings = ("", "run", "arm", "seed", "factors", "about", "disk", "from")
    show_table(console, headings, rows)
    if found:
        _say_total(found, console)
        _say_too_long(found, console)


def _say_too_long(found: Sequence[tuple[Run, estimates.Duration]], console: Console) -> None:
    """Say in one line that runs will be ended before they are done."""
    taken = [(each.run_s or 0.0, run.experiment.limits.run_timeout_s) for run, each in found]
    late = [(run_s, limit_s) for run_s, limit_s in taken if run_s > limit_s]
    if late:
        longest_s, limit_s = max(late)
        runs = "1 run takes" if len(late) == 1 else f"{len(late)} runs take"
        raised = f"--set limits.run_timeout_s={math.ceil(1.5 * longest_s / 100) * 100}"
        limit = f"limits.run_timeout_s allows ({limit_s:g} s)"
        say(
            console,
            f"caution: {runs} longer than {limit}, and would fail; raise it, for example {raised}",
        )


def _say_total(found: Sequence[tuple[Run, estimates.Duration]], console: Console) -> None:
    simulated = found[0][0].simulated
    at_once = min(len(found), len(os.sched_getaffinity(0))) if simulated else 1
    durations = [duration for _, duration in found]
    say(console, estimates.total(durations, at_once=at_once))
    if not all(each.computing for each in durations):
        console.print("predicted without the time for computing: the data are not here yet")


def show_topologies(runs: Sequence[Run], console: Console) -> None:
    """Print the size, the longest round trip and the links of each distinct topology."""
    distinct: dict[str, list[Run]] = {}
    for run in runs:
        distinct.setdefault(run.experiment.topology.model_dump_json(), []).append(run)
    for of_it in distinct.values():
        topology = topologies.build(of_it[0].experiment.topology)
        hosts, switches = len(topology.hosts()), len(topology.switches())
        say(
            console,
            f"\n{_topology_title(of_it, len(runs))}: {hosts} hosts, {switches} switches; "
            f"longest round trip without queues {1e3 * topology.longest_rtt_s():g} ms",
        )
        if roles := getattr(topology, "roles", {}):
            say(console, f"hosts: {', '.join(f'{name} is {role}' for name, role in roles.items())}")
        kinds: Counter[str] = Counter()  # such as `core: 100 Mbit/s, 10 ms, queue 150 kB`
        for name, options in topology.link_options().items():
            is_core = all(topology.isSwitch(node) for node in name.split("--"))
            kinds[f"{'core' if is_core else 'host'}: {_link_in_words(options)}"] += 1
        for words, count in kinds.items():
            say(console, f"{count} {'link' if count == 1 else 'links'}: {words}")


def _topology_title(runs: Sequence[Run], of: int) -> str:
    keys = {key.partition("topology.")[2]: value for key, value in runs[0].factors.items()}
    chosen = [f"{key} {json.dumps(keys[key])}" for key in keys if key not in ("", "name")]
    share = f" ({len(runs)} of {of} runs)" if len(runs) < of else ""
    return "topology " + ", ".join([Path(runs[0].experiment.topology.name).name, *chosen]) + share


def _link_in_words(options: Mapping[str, Any]) -> str:
    """A link's rate, delay one way and queue, and its other properties that are not zero."""
    parts = [sizes.quantity(options["rate_bps"], "bit/s")]
    if options["delay_s"]:
        jitter = f" ± {1e3 * options['jitter_s']:g} ms" if options["jitter_s"] else ""
        parts.append(f"{1e3 * options['delay_s']:g} ms{jitter}")
    parts.append(f"queue {sizes.quantity(options['queue_bytes'], 'B')}")
    if options["loss"]:
        parts.append(f"loss {100 * options['loss']:g} %")
    if options["ecn_threshold_bytes"] is not None:
        parts.append(f"ECN above {sizes.quantity(options['ecn_threshold_bytes'], 'B')}")
    if "priority_queue_bytes" in options:
        queue = sizes.quantity(options["priority_queue_bytes"], "B")
        parts.append(f"{queue} for protected datagrams")
    return ", ".join(parts)


def _cell(name: str, numbers: Numbers) -> str:
    value = getattr(numbers, name)
    if value is None:
        return "-"
    if name == "communication_share":
        return f"{100 * value:.1f} %"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
