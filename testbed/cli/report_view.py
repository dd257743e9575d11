"""Writes and prints the reports of finished runs, from their directories alone."""

import shlex
from dataclasses import replace

from rich.console import Console

import analysis
from analysis.report import verification
from analysis.tables.main_table import WAIVED
from analysis.tables.rendering import to_text
from testbed.cli.places import Place
from testbed.shared import run_directory
from testbed.shared.yaml_input import InputError
from testbed.training.phases.replay import replay

_FEW = 3  # runs with damaged logs that are told; the page has all


def write(place: Place) -> None:
    """Write the report of an experiment, or of all; print its main table and where it is.

    That of a script's run lies in the run's own folder.

    Raises:
        InputError: there are no results.
    """
    place.require()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    width = console.width if console.is_terminal else None
    try:
        for name in _names(place):
            own = place.key and run_directory.is_of_script(
                run_directory.read_or_empty(place.folder / "config.json")
            )
            where = (place.folder, None) if own else (place.results, name)
            paths = analysis.write_report(*where, detect=replay)
            if paths.verdicts.get("ok"):
                table = paths.main_table  # a caution tells the waived gates
                notes = [each for each in table.notes if not each.startswith(WAIVED)]
                shown = to_text(replace(table, notes=notes), width=width)
                console.print("", shown, sep="\n")
            else:
                counts = ", ".join(f"{n} {word}" for word, n in paths.verdicts.items() if n)
                console.print(f"\n{paths.experiment}: no run is ok ({counts})")
            for caution in (*paths.cautions, *_of_logs(paths.damaged)):
                console.print(f"caution: {caution}", soft_wrap=not console.is_terminal)
            console.print(f"report: {paths.index}")
            if sum(paths.verdicts.values()) > paths.verdicts.get("ok", 0):
                folder = shlex.quote(str(paths.index.parents[1]))
                again = f", ./lab resume {folder} runs them" if paths.resumable else ""
                console.print(f"what to do: ./lab explain {folder} says why runs are not ok{again}")
    except ValueError as error:
        raise InputError(str(error)) from None
    if place.known()[1:]:
        console.print(f"all reports: {paths.overview}")


def _of_logs(damaged: list[tuple[str, list[str]]]) -> list[str]:
    """A sentence for each run whose logs are not whole; of many for the first ones."""
    told = [f"the logs of {key} are not whole: {'; '.join(found)}" for key, found in damaged]
    more = len(told) - _FEW
    return told if more <= 0 else [*told[:_FEW], f"the logs of {more} more runs are not whole"]


def keep(place: Place) -> None:
    """Keep experiments' tables in experiments/results/, and write them into the documents.

    Raises:
        InputError: as `write` does.
    """
    try:
        for name in _names(place):
            folder = analysis.update_readme(place.results, name, detect=replay)
            print(f"kept: {folder}")
            told = verification.of_commits(folder)
            for said in told.refused:
                print(f"caution: {said}; ./lab verify-results refuses these results")
            for said in told.remarks:
                print(f"caution: {said}")
    except ValueError as error:
        raise InputError(str(error)) from None


def index_again(place: Place) -> None:
    """Write the index of the reports, since an experiment has gone."""
    analysis.write_index(place.results)


def _names(place: Place) -> list[str] | list[None]:
    """The experiments; with none at all, the loading of results says what is missing."""
    return [place.experiment] if place.experiment else place.known() or [None]
