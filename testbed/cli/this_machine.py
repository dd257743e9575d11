"""Chooses an experiment's profile `slow` where this machine does not hold the experiment's rate."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from testbed import experiment
from testbed.cli import terminal
from testbed.cli.choosing import Chosen
from testbed.machine import steadiness
from testbed.shared.input_error import InputError

SLOW_PROFILE = "slow"


def sized(chosen: Chosen, console: Console) -> Chosen:
    """What was chosen, in the profile that fits this machine; a change is said in one line.

    Only experiments that have the profile are probed, and only where no profile was asked for. The
    runs' configuration, the plan and the report name the profile, whichever it is.
    """
    if not all(
        each.profile is None and SLOW_PROFILE in experiment.profile_names(each.name)
        for each in chosen.selections
    ):
        return chosen
    rate_bps = max(run.experiment.topology.rate_bps for run in chosen.runs)
    try:
        found = steadiness.probe((rate_bps, rate_bps))  # a second chance: a pause spoils the first
    except InputError:
        return chosen  # why no lab can be built is said by what needs one
    if found.rate_bps is not None:
        return chosen
    terminal.say(
        console,
        f"profile {SLOW_PROFILE} instead of laptop, which --profile laptop would keep: "
        f"{found.sentence()}",
    )
    slow = [replace(each, profile=SLOW_PROFILE) for each in chosen.selections]
    return Chosen(results=chosen.results, selections=slow)
