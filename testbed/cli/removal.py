"""Removes what runs left behind, or an experiment's results; asks before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import typer

from testbed.cli import places
from testbed.machine import clean as leftovers
from testbed.shared.input_error import InputError


def clean(what: str | None, out: Path, confirm: Callable[[str], bool]) -> bool:
    """Show and remove what was left behind, or all results of one experiment.

    Args:
        what: an experiment's name, file or folder, a folder of results, or the folder of a run that
            has been left unfinished; None: all that is left behind.
        out: the folder of all results.
        confirm: asks the user.

    Returns:
        Whether nothing is left that should have gone.

    Raises:
        InputError: `what` is a finished run, or holds no results.
    """
    place = places.find(what, out)
    left_behind = what is not None and bool(leftovers.why_stale(Path(what)))
    if place.key is not None and not left_behind:
        raise InputError(
            f"{what}: one run; valid: an experiment's name, file or folder, or the folder of a run "
            "that has been left unfinished"
        )
    if what is not None and place.experiment is None:
        place.require_results()
    if left_behind or place.experiment is None:
        folder = Path(what or "") if left_behind else place.results
        return leftovers.clean_leftovers(folder, print, confirm)
    done = leftovers.clean_experiment(place.results, place.experiment, print, confirm)
    if done:
        from testbed.cli import report_view  # imports what draws figures, which takes a second

        report_view.index_again(place)
    return done


def asking(yes: bool) -> Callable[[str], bool]:
    """What asks the user a question; with `--yes` it does not ask."""

    def confirm(question: str) -> bool:
        if yes:
            return True
        try:
            answer = typer.confirm(question)
        except typer.Abort:  # no one is there to answer
            print("\nnothing was removed; --yes does not ask")
            return False
        if not sys.stdin.isatty():
            print()  # nobody pressed the key that ends the line
        if not answer:
            print("nothing was removed")
        return answer

    return confirm
