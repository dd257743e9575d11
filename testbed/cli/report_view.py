"""Writes and prints the report of finished runs, from their directories alone."""

from pathlib import Path

from rich.console import Console

import analysis
from analysis.tables.rendering import to_text
from testbed.shared.yaml_input import InputError


def write(results: Path, experiment: str | None) -> None:
    """Write an experiment's report; print its main table and where the report is.

    Raises:
        InputError: there are no results, or several experiments to choose from.
    """
    try:
        paths = analysis.write_report(results, experiment)
    except ValueError as error:
        raise InputError(str(error)) from None
    console = Console(highlight=False, markup=False, soft_wrap=True)
    width = console.width if console.is_terminal else None
    console.print("", to_text(paths.main_table, width=width), sep="\n")
    for caution in paths.cautions:
        console.print(f"caution: {caution}", soft_wrap=not console.is_terminal)
    console.print(f"report: {paths.index}")


def keep(results: Path, experiment: str | None) -> None:
    """Keep an experiment's tables in experiments/results/, and write them into README.

    Raises:
        InputError: as `write` does.
    """
    try:
        print(f"kept: {analysis.update_readme(results, experiment)}")
    except ValueError as error:
        raise InputError(str(error)) from None
