"""Executes the runs of `./lab run` and `./lab resume`, from prerequisites to the report."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from testbed.cli import progress
from testbed.experiment import Run
from testbed.machine import capabilities
from testbed.run import runner
from testbed.run.runner import Outcome
from testbed.shared import run_directory
from testbed.shared.yaml_input import InputError

_CAPTURES_SHOWN = 6


def hosts_to_capture(runs: Sequence[Run], pcap: str | None) -> list[str]:
    """The hosts that `--pcap` names.

    Raises:
        InputError: one of them is not in the experiment's topology.
    """
    names = [name for name in (pcap or "").split(",") if name]
    valid = [name for run in runs[:1] for name in run.experiment.topology.host_names()]
    for name in names:
        if name not in valid:
            raise InputError(f"--pcap {pcap}: unknown host {name!r}; valid: {', '.join(valid)}")
    return list(dict.fromkeys(names))


def execute(results: Path, runs: Sequence[Run], *, pcap: str | None, retries: int) -> bool:
    """Execute runs, write and print their report; return whether none failed or was invalid.

    Raises:
        InputError: a prerequisite is missing, or the results cannot be written.
    """
    capture = hosts_to_capture(runs, pcap)
    if importlib.util.find_spec("torch") is None:
        raise InputError("training needs torch, which was left out here: LAB_TORCH=1 ./lab setup")
    progress.meet_prerequisites(runs, Console())
    capabilities.require()
    try:
        runner.write_plan(results, runs)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None
    outcomes = []
    try:
        with progress.runs_shown(Console(), len(runs)) as shown:
            for run in runs:
                shown.begin(run.label)
                outcomes.append(_attempt(results, run, capture, retries, shown))
    finally:
        runner.hand_over(results)
    from testbed.cli import report_view  # imports what draws figures, which takes a second

    report_view.write(results, runs[0].experiment.name)
    for line in _captures(outcomes):
        print(line)
    runner.hand_over(results)
    return not any(outcome.verdict in ("failed", "invalid") for outcome in outcomes)


def _attempt(
    results: Path, run: Run, capture: Sequence[str], retries: int, shown: progress.RunProgress
) -> Outcome:
    """Execute one run, again while it is invalid; show what happens as it happens."""
    tries = runner.attempts(results, run, shown.record, capture=capture, retries=retries)
    for number, outcome in enumerate(tries, start=1):
        if outcome.verdict == "invalid" and number <= retries:
            shown.again(outcome, number, retries)
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
