"""Executes the runs of `./lab run` and `./lab simulate`, from prerequisites to the report."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from testbed import experiment
from testbed.cli import choosing, places, plan_view, progress
from testbed.cli.choosing import Chosen
from testbed.cli.options import Execution
from testbed.cli.terminal import console, say
from testbed.experiment import Run
from testbed.experiment.run import blocks
from testbed.machine import capabilities, steadiness
from testbed.run import planning, runner
from testbed.run.runner import Outcome
from testbed.shared import run_directory
from testbed.shared.input_error import InputError

if TYPE_CHECKING:
    from testbed.cluster.scheduler import Scheduler

SLOW_PROFILE = "slow"
_CAPTURES_SHOWN = 6
RETRIES = 2  # of an invalid run


def run(options: Execution, *, simulated: bool = False) -> bool:
    """Execute what of an experiment is not ok yet; return whether none failed or was invalid."""
    if options.scheduler is not None and options.retries is not None:
        words = "only one of them; the same command tries again what is not ok"
        raise InputError(f"--retries and --scheduler: {words}")
    screen = console()
    chosen = choosing.chosen(options, simulated=simulated)
    runner.require_writable(chosen.results)
    if simulated:
        for remark in not_of_a_lab(chosen):
            say(screen, remark)
        return _carry_out(chosen, screen)
    _ = chosen.capture  # a wrong host is told before seconds of probing
    # With a scheduler all machines must execute the same.
    if not options.dry_run and options.scheduler is None:
        chosen = sized(chosen, screen)
    return _carry_out(chosen, screen)


def sized(chosen: Chosen, console: Console) -> Chosen:
    """What was chosen, in the profile that fits this machine; a change is said in one line."""
    # Probed where an experiment has that profile, none was asked for, and none has been planned.
    names = [selection.name for selection in chosen.selections if selection.profile is None]
    if not names or SLOW_PROFILE not in experiment.profile_names(names[0]):
        return chosen
    slow = [replace(selection, profile=SLOW_PROFILE) for selection in chosen.selections]
    profile = planning.read(chosen.folder).get("profile")
    if profile == SLOW_PROFILE:
        return replace(chosen, selections=slow)
    rate_bps = max(run.experiment.topology.rate_bps for run in chosen.runs)
    try:  # a second chance: a pause spoils the first
        machine = None if profile else steadiness.probe((rate_bps, rate_bps))
    except InputError:
        return chosen  # why no lab can be built is said by what needs one
    if machine is None or machine.rate_bps is not None:
        return chosen
    kept = "which --profile laptop would keep"
    say(console, f"profile {SLOW_PROFILE} instead of laptop, {kept}: {machine.sentence()}")
    return replace(chosen, selections=slow)


def not_of_a_lab(chosen: Chosen) -> list[str]:
    """Refuse what runs in virtual time cannot have; return what a reader must know of them."""
    from testbed.run import simulating  # imports torch, which takes a second

    if pcap := chosen.options.pcap:
        raise InputError(f"--pcap {pcap}: nothing is on a wire; valid: without --pcap")
    for run in chosen.runs:
        simulating.refuse(run)
    return simulating.remarks(chosen.runs)


def _carry_out(chosen: Chosen, console: Console) -> bool:
    """Plan runs, execute them, write the report; returns whether none failed or was invalid."""
    options, results, runs = chosen.execution, chosen.results, chosen.runs
    planning.check(results, runs)
    if options.dry_run:
        if options.anew:
            raise InputError("--anew and --dry-run: only one of them")
        plan_view.show_runs(results, runs, console)
        plan_view.show_time(results, runs, console)
        return True
    verdicts = Counter(_standing(results, run) for run in runs)
    if options.pcap and verdicts["ok"] and not options.anew:
        first = next(run.label for run in runs if _standing(results, run) == "ok")
        raise InputError(
            f"--pcap: {verdicts['ok']} of these runs are ok already and would not be recorded "
            f"({first}); record them in another folder with --out DIR, or with --anew"
        )
    if options.scheduler is None and (options.anew or verdicts["ok"] < len(runs)):
        if any(run.experiment.trains for run in runs) and not importlib.util.find_spec("torch"):
            raise InputError(
                "training needs torch, which was left out here: LAB_TORCH=1 ./lab check"
            )
        progress.meet_prerequisites(runs, console)
        if not chosen.simulated:
            capabilities.require()
    if options.scheduler is not None:
        from testbed.cluster.scheduler import Scheduler

        with closing(Scheduler(options.scheduler, chosen.capture).connect()) as scheduler:
            _plan(chosen, verdicts, console)
            with progress.runs_shown(console, len(runs)) as shown:
                _on_workers(chosen, scheduler, shown)
    else:
        _plan(chosen, verdicts, console)
        plan_view.show_time(results, runs, console)
        with progress.runs_shown(console, len(runs)) as shown:
            (_side_by_side if chosen.simulated else _one_by_one)(chosen, shown)
    outcomes = [shown.outcomes[run.key] for run in runs]
    if any(outcome.verdict == "interrupted" for outcome in outcomes):  # by a full disk
        runner.require_space(results, runs[-1])
    from testbed.cli import report_view  # imports what draws figures, which takes a second

    place = places.Place(results=results, experiment=runs[0].experiment.name)
    report_view.write(place)
    for line in _captures(outcomes):
        say(console, line)
    return not any(outcome.verdict in ("failed", "invalid") for outcome in outcomes)


def _standing(results: Path, run: Run) -> str:
    """The verdict that a run has from an earlier command; empty where it has not been begun."""
    place = runner.directory_of(results, run)
    return place.verdict() or ("interrupted" if place.partial.exists() else "")


def _plan(chosen: Chosen, verdicts: Counter[str], console: Console) -> None:
    """Store the plan, and say what becomes of runs that earlier commands have begun."""
    runner.require_space(chosen.results, chosen.runs[0])
    if chosen.execution.anew:
        for run in chosen.runs:
            runner.directory_of(chosen.results, run).set_aside()
    try:
        selections = [selection.stored() for selection in chosen.selections]
        remarks = planning.extend(chosen.results, chosen.runs, selections)
    except OSError as error:
        raise InputError(f"{error.filename or chosen.results}: {error.strerror}") from None
    begun = [f"{count} {verdict}" for verdict, count in verdicts.items() if verdict]
    follows = "goes on with the others" if verdicts["ok"] else "goes on"
    if verdicts["ok"] == len(chosen.runs):
        follows = "nothing is left to do"
    if verdicts["ok"]:
        follows += "; --anew executes what is ok again"
    if chosen.execution.anew:
        follows = "all are executed anew; what was there is kept as an attempt"
    standing = f"{chosen.folder}: of {len(chosen.runs)} runs {', '.join(begun)}: {follows}"
    for remark in [standing, *remarks] if begun else remarks:
        say(console, remark)


def _one_by_one(chosen: Chosen, shown: progress.RunProgress) -> None:
    """Execute runs in labs, each again while it is invalid; show what happens as it happens."""
    retries, capture = chosen.execution.retries, chosen.capture
    retries = RETRIES if retries is None else retries
    for run in chosen.runs:
        runner.require_space(chosen.results, run)
        record = shown.begin(run.label)
        tries = runner.attempts(chosen.results, run, record, capture=capture, retries=retries)
        for number, outcome in enumerate(tries, start=1):
            if outcome.may_differ and number <= retries:
                shown.again(run.label, outcome, number, retries)
        shown.end(outcome)


def _side_by_side(chosen: Chosen, shown: progress.RunProgress) -> None:
    """Execute simulated runs, one on each processor."""
    from testbed.run import side_by_side

    results, runs = chosen.results, chosen.runs
    for outcome in side_by_side.execute(results, runs, lambda run: shown.begin(run.label)):
        shown.end(outcome)


def _on_workers(chosen: Chosen, scheduler: Scheduler, shown: progress.RunProgress) -> None:
    """Have a scheduler's workers execute what is not ok; results come here as blocks end."""
    left = []
    for run in chosen.runs:
        if _standing(chosen.results, run) == "ok":
            path = runner.directory_of(chosen.results, run).path
            shown.end(Outcome(run, path, "ok", "", executed=False))
        else:
            left.append(run)
    lost = scheduler.share_out(blocks(left), chosen.results, end=shown.end, say=shown.say)
    for run in lost:
        path = runner.directory_of(chosen.results, run).path
        shown.end(Outcome(run, path, "failed", "lost with its workers", executed=True))


def _captures(outcomes: Sequence[Outcome]) -> list[str]:
    """One line for each of the first captures of these runs, and how many more there are."""
    lines = [
        f"capture: {outcome.directory / 'pcap' / each['file']}{_flaws(each)}"
        for outcome in outcomes
        if outcome.executed
        for each in run_directory.read_or_empty(outcome.directory / "manifest.json").get(
            "captures", []
        )
    ]
    more = len(lines) - _CAPTURES_SHOWN
    return lines[:_CAPTURES_SHOWN] + ([f"and {more} more captures"] if more > 0 else [])


def _flaws(capture: Mapping[str, Any]) -> str:
    """What is missing from a capture, in words; empty for a complete one."""
    flaws = {
        f"ended early at its bound of {capture['bound_bytes'] / 1e6:g} MB": "bound_reached",
        f"{capture['packets_dropped']} packets came too fast and are missing": "packets_dropped",
        f"ended early: {capture['failure']}": "failure",
    }
    found = "; ".join(words for words, key in flaws.items() if capture[key])
    return f" ({found})" if found else ""
