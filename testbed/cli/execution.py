"""Executes the runs of `./lab run`, `resume` and `simulate`, from prerequisites to the report."""

import importlib.util
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from testbed.cli import choosing, on_workers, places, plan_view, progress, terminal, this_machine
from testbed.cli.options import Execution, Sweep, names_in
from testbed.experiment import Run
from testbed.machine import capabilities
from testbed.run import planning, runner
from testbed.run.runner import OnProgress, Outcome
from testbed.shared import run_directory
from testbed.shared.yaml_input import InputError

_CAPTURES_SHOWN = 6


def run(selection: Sweep, options: Execution) -> bool:
    """Execute what is new of an experiment; return whether none failed or was invalid.

    Raises:
        InputError: nothing is new, a prerequisite is missing, or results cannot be written.
    """
    chosen = choosing.chosen(selection, options.out)
    runner.require_writable(chosen.results)
    hosts_to_capture(chosen.runs, options.pcap)  # a wrong one is told before seconds of probing
    divided = bool(chosen.shards or options.scheduler)  # then all machines must execute the same
    if not options.dry_run and not divided and runner.unfinished(chosen.results, chosen.runs):
        chosen = this_machine.sized(chosen, terminal.console(stderr=options.as_json))
    if not options.dry_run and not runner.unfinished(chosen.results, chosen.runs):
        _refuse_recording_what_is_done(replace(options, out=chosen.results), chosen.runs)
        folder = chosen.results / chosen.runs[0].experiment.name
        verdicts = Counter(
            runner.directory_of(chosen.results, run).verdict() for run in chosen.runs
        )
        listed = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        raise InputError(
            f"{folder}: none of these runs is new ({listed}); './lab report {folder}' shows them, "
            "'./lab resume' with the same options tries again what is not ok, and --out DIR runs "
            "them elsewhere"
        )
    return _execute(chosen, options)


def resume(selection: Sweep, options: Execution) -> bool:
    """Execute the runs that are not done or did not end well; otherwise as `run`.

    Without options these are the runs of the folder's plan.
    """
    chosen = choosing.chosen(selection, options.out, planned=True)
    runner.require_writable(chosen.results)
    return _execute(chosen, options)


def _execute(chosen: choosing.Chosen, options: Execution) -> bool:
    runs, options = chosen.runs, replace(options, out=chosen.results)
    capture = hosts_to_capture(runs, options.pcap)
    console = terminal.console(stderr=options.as_json)
    if options.dry_run:
        planning.check(options.out, chosen.planned)
        plan_view.show_durations(options.out, runs, console)
        _print_plan(options, runs)
        return True
    _refuse_recording_what_is_done(options, runs)
    outcomes = _carry_out(
        chosen,
        console,
        lambda runs, shown: _one_by_one(runs, options, capture, shown),
        options,
        require=capabilities.require,
    )
    for line in _captures(outcomes):
        terminal.say(console, line)
    return _went_well(outcomes)


def simulate(selection: Sweep, options: Execution) -> bool:
    """Execute an experiment in virtual time; return whether none failed or was invalid.

    Raises:
        InputError: something of it is not simulated, a prerequisite is missing, or results cannot
            be written.
    """
    from testbed.run import side_by_side  # imports torch, which takes a second

    chosen = choosing.chosen(selection, options.out, simulated=True)
    runner.require_writable(chosen.results)
    remarks = not_of_a_lab(chosen, selection, options.pcap)
    runs = chosen.runs
    console = terminal.console(stderr=options.as_json)
    if options.dry_run:
        planning.check(chosen.results, chosen.planned)
        at_once = simulated_at_once(runs)
        plan_view.show_durations(chosen.results, runs, console, at_once=at_once)
        _print_plan(replace(options, out=chosen.results), runs)
        return True
    for remark in remarks:
        terminal.say(console, remark)

    def execute(runs: Sequence[Run], shown: progress.RunProgress) -> list[Outcome]:
        each_shown, ended = {}, {}

        def begin(run: Run) -> OnProgress:
            each_shown[run.key] = shown.begin(run.label)
            return each_shown[run.key].record

        for outcome in side_by_side.execute(chosen.results, runs, begin):
            each_shown[outcome.run.key].end(outcome)
            ended[outcome.run.key] = outcome
        return [ended[run.key] for run in runs]

    at_once = simulated_at_once(runs)
    return _went_well(_carry_out(chosen, console, execute, options, at_once=at_once))


def simulated_at_once(runs: Sequence[Run]) -> int:
    """How many runs go on side by side in virtual time."""
    return max(1, min(len(runs), len(os.sched_getaffinity(0))))


def not_of_a_lab(chosen: choosing.Chosen, selection: Sweep, pcap: str | None) -> list[str]:
    """Refuse what runs in virtual time cannot have; return what a reader must know of them.

    Raises:
        InputError: one line.
    """
    from testbed.run import simulating

    if pcap:
        raise InputError(f"--pcap {pcap}: nothing is on a wire; valid: without --pcap")
    if selection.controller:
        raise InputError(
            f"--controller {selection.controller}: nothing is switched here; valid: without "
            "--controller"
        )
    for run in chosen.runs:
        simulating.refuse(run)
    return simulating.remarks(chosen.runs)


def _carry_out(
    chosen: choosing.Chosen,
    console: Console,
    execute: Callable[[Sequence[Run], progress.RunProgress], list[Outcome]],
    options: Execution,
    *,
    at_once: int = 1,
    require: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Plan runs, execute them here or on workers, write the report; print JSON where it is wanted.

    Args:
        chosen: the runs.
        console: for what is said.
        execute: executes runs here, and returns how they ended.
        options: of the command.
        at_once: how many runs go on side by side.
        require: raises InputError for what this machine lacks to execute runs.
    """
    results, runs = chosen.results, chosen.runs
    planning.check(results, chosen.planned)
    if options.scheduler is not None:
        with on_workers.connected(options.scheduler, hosts_to_capture(runs, options.pcap)) as found:
            _plan(chosen, console)
            with progress.runs_shown(console, len(runs)) as shown:
                retries = options.retries
                outcomes = on_workers.execute(results, runs, found, shown, retries=retries)
    else:
        trains = any(run.experiment.trains for run in runs)
        if trains and importlib.util.find_spec("torch") is None:
            raise InputError(
                "training needs torch, which was left out here: LAB_TORCH=1 ./lab setup"
            )
        progress.meet_prerequisites(runs, console)
        require()
        _plan(chosen, console)
        plan_view.show_total(results, runs, console, at_once=at_once)
        with progress.runs_shown(console, len(runs)) as shown:
            outcomes = execute(runs, shown)
    if any(outcome.verdict == "interrupted" for outcome in outcomes):  # by a full disk
        runner.require_space(results, runs[-1])
    from testbed.cli import report_view  # imports what draws figures, which takes a second

    place = places.Place(results=results, experiment=runs[0].experiment.name)
    written = report_view.write(place, as_json=options.as_json)
    if options.as_json:
        told = {"runs": _records(outcomes), "reports": report_view.records(written)}
        print(json.dumps(told, indent=1))
    return outcomes


def _plan(chosen: choosing.Chosen, console: Console) -> None:
    """Store the plan."""
    runner.require_space(chosen.results, chosen.runs[0])
    try:
        selections = [each.stored() for each in chosen.selections]
        remarks = planning.extend(chosen.results, chosen.planned, selections, chosen.shards)
    except OSError as error:
        raise InputError(f"{error.filename or chosen.results}: {error.strerror}") from None
    for remark in remarks:
        terminal.say(console, remark)


def _records(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """What became of each run, for programs."""
    return [
        {
            "run": each.run.key,
            "arm": each.run.arm,
            "seed": each.run.seed,
            "factors": each.run.factors,
            "verdict": each.verdict,
            "reason": each.reason,
            "executed": each.executed,
            "directory": str(each.directory),
        }
        for each in outcomes
    ]


def _print_plan(options: Execution, runs: Sequence[Run]) -> None:
    if options.as_json:
        print(json.dumps({"runs": plan_view.records(options.out, runs)}, indent=1))


def _went_well(outcomes: Sequence[Outcome]) -> bool:
    return not any(outcome.verdict in ("failed", "invalid") for outcome in outcomes)


def _refuse_recording_what_is_done(options: Execution, runs: Sequence[Run]) -> None:
    """Refuse `--pcap` where a run that is ok would be skipped, and hence not be recorded."""
    done = [run for run in runs if runner.directory_of(options.out, run).verdict() == "ok"]
    if options.pcap and done:
        raise InputError(
            f"--pcap: {len(done)} of these runs are ok already and would not be recorded "
            f"({done[0].label}); record them in another folder with --out DIR"
        )


def hosts_to_capture(runs: Sequence[Run], pcap: str | None) -> list[str]:
    """The hosts that `--pcap` names; InputError for one that the topology has not."""
    names = names_in(pcap, "--pcap")
    valid = [name for run in runs[:1] for name in run.experiment.topology.host_names()]
    for name in names:
        if name not in valid:
            raise InputError(f"--pcap {pcap}: unknown host {name!r}; valid: {', '.join(valid)}")
    return names


def _one_by_one(
    runs: Sequence[Run], options: Execution, capture: Sequence[str], shown: progress.RunProgress
) -> list[Outcome]:
    """Execute runs in labs, each again while it is invalid; show what happens as it happens."""
    outcomes = []
    for run in runs:
        runner.require_space(options.out, run)
        one = shown.begin(run.label)
        tries = runner.attempts(
            options.out, run, one.record, capture=capture, retries=options.retries
        )
        for number, outcome in enumerate(tries, start=1):
            if outcome.may_differ and number <= options.retries:
                one.again(outcome, number, options.retries)
        one.end(outcome)
        outcomes.append(outcome)
    return outcomes


def _captures(outcomes: Sequence[Outcome]) -> list[str]:
    """One line for each of the first captures of these runs, and how many more there are."""
    lines = []
    for outcome in outcomes:
        manifest = outcome.directory / "manifest.json"
        if not outcome.executed or not manifest.exists():
            continue
        for each in run_directory.read_json(manifest).get("captures", []):
            lines.append(f"capture: {outcome.directory / 'pcap' / each['file']}{_flaws(each)}")
    more = len(lines) - _CAPTURES_SHOWN
    return lines[:_CAPTURES_SHOWN] + ([f"and {more} more captures"] if more > 0 else [])


def _flaws(capture: Mapping[str, Any]) -> str:
    """What is missing from a capture, in words; empty for a complete one."""
    flaws = []
    if capture["bound_reached"]:
        flaws.append(f"ended early at its bound of {capture['bound_bytes'] / 1e6:g} MB")
    if capture["packets_dropped"]:
        flaws.append(f"{capture['packets_dropped']} packets came too fast and are missing")
    if capture["failure"]:
        flaws.append(f"ended early: {capture['failure']}")
    return f" ({'; '.join(flaws)})" if flaws else ""
