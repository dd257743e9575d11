"""Prints a plan: its runs, the time they take, and the numbers that characterise them."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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


def show_runs(results: Path, runs: Sequence[Run], console: Console) -> None:
    """Print the runs in the order of their execution, each with its verdict so far."""
    standings = _standings(results, runs)
    rows = []
    for run, verdict, lacking in standings:
        factors = ", ".join(f"{name} {value}" for name, value in run.factors.items())
        word = verdict or (_UNSUPPORTED if lacking else "to do")
        rows.append([run.key, run.arm, str(run.seed), factors, word])
    show_table(console, ("run", "arm", "seed", "factors", "verdict"), rows)
    arms: dict[str, dict[str, None]] = {}
    for standing in standings:
        if standing.lacking:
            arms.setdefault(standing.lacking, {})[standing.run.arm] = None
    for reason, names in arms.items():
        say(console, f"{_UNSUPPORTED}: {', '.join(names)}: {reason}")


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
        show_time(chosen.results, chosen.runs, console)
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


def show_time(results: Path, runs: Sequence[Run], console: Console) -> None:
    """Say how long the runs still to be executed take, and which would be ended before."""
    standings = _standings(results, runs)
    left = [
        standing.run for standing in standings if standing.verdict != "ok" and not standing.lacking
    ]
    if not left:
        return
    kinds = [json.dumps([run.arm, run.factors]) for run in left]  # seeds take alike
    firsts = dict(zip(reversed(kinds), reversed(left), strict=True))
    of_kind = dict(zip(firsts, estimates.of_runs(results, list(firsts.values())), strict=True))
    durations = [of_kind[kind] for kind in kinds]
    at_once = min(len(left), len(os.sched_getaffinity(0))) if left[0].simulated else 1
    say(console, estimates.total(durations, at_once=at_once))
    taken = [
        (duration.run_s or 0.0, run.experiment.limits.run_timeout_s)
        for run, duration in zip(left, durations, strict=True)
    ]
    if late := [(run_s, limit_s) for run_s, limit_s in taken if run_s > limit_s]:
        longest_s, limit_s = max(late)
        runs_take = "1 run takes" if len(late) == 1 else f"{len(late)} runs take"
        raised = f"--set limits.run_timeout_s={math.ceil(1.5 * longest_s / 100) * 100}"
        limit = f"limits.run_timeout_s allows ({limit_s:g} s)"
        say(
            console,
            f"caution: {runs_take} longer than {limit}, and would fail; raise it, for example "
            f"{raised}",
        )


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
        kinds: Counter[str] = Counter()  # such as `100 Mbit/s, 10 ms, queue 150 kB`
        for link in topology.link_options().values():
            rate = sizes.quantity(link["rate_bps"], "bit/s")
            delay = f"{1e3 * link['delay_s']:g} ms, " if link["delay_s"] else ""
            kinds[f"{rate}, {delay}queue {sizes.quantity(link['queue_bytes'], 'B')}"] += 1
        for words, count in kinds.items():
            say(console, f"{count} {'link' if count == 1 else 'links'}: {words}")


def _topology_title(runs: Sequence[Run], of: int) -> str:
    keys = {key.partition("topology.")[2]: value for key, value in runs[0].factors.items()}
    chosen = [f"{key} {json.dumps(keys[key])}" for key in keys if key not in ("", "name")]
    share = f" ({len(runs)} of {of} runs)" if len(runs) < of else ""
    return "topology " + ", ".join([Path(runs[0].experiment.topology.name).name, *chosen]) + share


def _cell(name: str, numbers: Numbers) -> str:
    value = getattr(numbers, name)
    if value is None:
        return "-"
    if name == "communication_share":
        return f"{100 * value:.1f} %"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
