"""Executes the runs of `./lab run` and `./lab resume`, from their prerequisites to the report."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from testbed.cli import plan_view, progress
from testbed.cli.options import Execution, Selection, names_in
from testbed.experiment import Run
from testbed.machine import capabilities
from testbed.run import runner
from testbed.run.runner import Outcome
from testbed.shared import run_directory
from testbed.shared.yaml_input import InputError

_CAPTURES_SHOWN = 6


def run(selection: Selection, options: Execution) -> bool:
    """Execute runs that are all new; return whether none failed or was invalid.

    Raises:
        InputError: some are done already, a prerequisite is missing, or results cannot be written.
    """
    runs = selection.runs(options.out)
    done = [] if options.dry_run else runner.finished(options.out, runs)
    if done:
        raise InputError(
            f"{options.out / runs[0].experiment.name}: already holds {len(done)} of these runs; "
            f"continue with './lab resume {selection.name}', or choose another folder with "
            "--out DIR"
        )
    return _execute(runs, options)


def resume(selection: Selection, options: Execution) -> bool:
    """Execute the runs that are not done or did not end well; otherwise as `run`."""
    return _execute(selection.runs(options.out), options)


def _execute(runs: Sequence[Run], options: Execution) -> bool:
    if options.dry_run:
        plan_view.show_durations(options.out, runs, Console())
        return True
    capture = _hosts_to_capture(runs, options.pcap)
    if importlib.util.find_spec("torch") is None:
        raise InputError("training needs torch, which was left out here: LAB_TORCH=1 ./lab setup")
    progress.meet_prerequisites(runs, Console())
    capabilities.require()
    try:
        runner.write_plan(options.out, runs)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None
    outcomes = []
    try:
        with progress.runs_shown(Console(), len(runs)) as shown:
            for each in runs:
                shown.begin(each.label)
                outcomes.append(_attempt(each, options, capture, shown))
    finally:
        runner.hand_over(options.out)
    from testbed.cli import report_view  # imports what draws figures, which takes a second

    report_view.write(options.out, runs[0].experiment.name)
    for line in _captures(outcomes):
        print(line)
    runner.hand_over(options.out)
    return not any(outcome.verdict in ("failed", "invalid") for outcome in outcomes)


def _hosts_to_capture(runs: Sequence[Run], pcap: str | None) -> list[str]:
    """The hosts that `--pcap` names; InputError for one that the topology has not."""
    names = names_in(pcap or "")
    valid = [name for run in runs[:1] for name in run.experiment.topology.host_names()]
    for name in names:
        if name not in valid:
            raise InputError(f"--pcap {pcap}: unknown host {name!r}; valid: {', '.join(valid)}")
    return names


def _attempt(
    run: Run, options: Execution, capture: Sequence[str], shown: progress.RunProgress
) -> Outcome:
    """Execute one run, again while it is invalid; show what happens as it happens."""
    tries = runner.attempts(
        options.out, run, shown.record, capture=capture, retries=options.retries
    )
    for number, outcome in enumerate(tries, start=1):
        if outcome.verdict == "invalid" and number <= options.retries:
            shown.again(outcome, number, options.retries)
    shown.end(outcome)
    return outcome


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
