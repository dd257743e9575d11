"""What a person sees of an experiment before it is executed: its runs, its numbers, its time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from testbed import experiment
from testbed.cli import plan_numbers
from testbed.experiment import REFERENCE_PROFILE, Run, estimate
from testbed.run import runner
from testbed.shared.yaml_input import InputError

if TYPE_CHECKING:
    from testbed.cli.options import Selection


def show_runs(results: Path, runs: Sequence[Run], console: Console) -> None:
    """Print the runs in the order of their execution, and what has become of them."""
    table = Table("run", "arm", "seed", "factors", "verdict", box=None)
    for run in runs:
        verdict = runner.directory_of(results, run).verdict() or "to do"
        table.add_row(run.key, run.arm, str(run.seed), _factors(run), verdict)
    console.print(table)


def show_numbers(selection: Selection, console: Console) -> None:
    """Print the runs' dimensionless numbers, beside those of the reference profile if there is one.

    Raises:
        InputError: a user's model or data cannot be had.
    """
    runs = selection.loaded()
    found = plan_numbers.of_each(runs, _reporter(console))
    plan_numbers.show(found, console)
    if runs[0].profile == REFERENCE_PROFILE:
        return
    if REFERENCE_PROFILE not in experiment.profile_names(selection.name):
        return
    try:
        reference = plan_numbers.of_each(
            selection.loaded(profile=REFERENCE_PROFILE), _reporter(console)
        )
    except InputError as error:  # the user did not ask for it
        console.print(f"profile {REFERENCE_PROFILE} is not compared: {error}", soft_wrap=True)
        return
    plan_numbers.show_kept(found, reference, console)


def show_estimate(results: Path, runs: Sequence[Run], console: Console) -> None:
    """Print what is still to be executed, in its order, and about how long that takes.

    Raises:
        InputError: a user's model or data cannot be had.
    """
    left = [run for run in runs if runner.directory_of(results, run).verdict() != "ok"]
    if not left:
        console.print("nothing to do: all runs are ok")
        return
    found = estimate.estimates(results, left, _reporter(console))
    table = Table("", "run", "arm", "seed", "factors", "about", "from", box=None)
    for number, (run, each) in enumerate(zip(left, found, strict=True), start=1):
        source = f"{each.earlier} earlier" if each.earlier else "prediction"
        duration = estimate.in_words(each.run_s)
        table.add_row(str(number), run.key, run.arm, str(run.seed), _factors(run), duration, source)
    console.print(table)
    console.print(estimate.total(found), highlight=False, soft_wrap=True)
    predicted = [run for run, each in zip(left, found, strict=True) if not each.earlier]
    if any(run.experiment.training.pace.kind == "real" for run in predicted):
        console.print("predicted without the time for computing: pace real", highlight=False)


def _factors(run: Run) -> str:
    return ", ".join(f"{name} {value}" for name, value in run.factors.items())


def _reporter(console: Console) -> estimate.Report:
    return lambda words: console.print(f"{words} ...", style="dim", highlight=False)
