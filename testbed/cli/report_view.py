"""Writes and prints the reports of finished runs, from their directories alone."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

import analysis
from analysis.report import verification
from analysis.report.writing import ReportPaths
from analysis.tables.main_table import WAIVED
from analysis.tables.rendering import to_text
from testbed.cli import terminal
from testbed.cli.places import Place
from testbed.run import planning
from testbed.shared import run_directory
from testbed.shared.yaml_input import InputError
from testbed.verdict.limits import OF_THE_MACHINE

_MANY = 50  # runs take so long to read that it is said
_FEW = 3  # runs with damaged logs that are told; the page has all


def write(
    place: Place, *, as_json: bool = False, include_invalid: bool = False
) -> list[ReportPaths]:
    """Write the report of an experiment, or of all; print its main table and where it is.

    That of a script's run lies in the run's own folder.

    Args:
        place: whose reports.
        as_json: print to standard error, since standard output is for JSON.
        include_invalid: invalid runs' numbers, too, marked as such.

    Returns:
        What was written, for each experiment.

    Raises:
        InputError: there are no results.
    """
    place.require()
    console = Console(highlight=False, markup=False, soft_wrap=True, stderr=as_json)
    written = []
    try:
        for name in _names(place):
            own = place.key and run_directory.is_of_script(
                run_directory.read_or_empty(place.folder / "config.json")
            )
            if name and (count := len(list((place.results / name).glob("*/status.json")))) > _MANY:
                console.print(f"{name}: reading {count} runs and drawing figures")
            where = (place.folder, None) if own else (place.results, name)
            written.append(analysis.write_report(*where, include_invalid=include_invalid))
            _show(written[-1], console)
    except ValueError as error:
        raise InputError(str(error)) from None
    if place.known()[1:]:
        console.print(f"all reports: {written[-1].overview}")
    return written


def records(written: Sequence[ReportPaths]) -> list[dict[str, Any]]:
    """What `write` prints, for programs; `main` is the main table with unrounded numbers."""
    return [
        {
            "experiment": each.experiment,
            "report": str(each.index),
            "summary": str(each.summary),
            "verdicts": each.verdicts,
            "invalid_included": each.invalid_included,
            "cautions": each.cautions,
            "damaged": dict(each.damaged),
            "resumable": each.resumable,
            "main": each.main_table.records,
        }
        for each in written
    ]


def _show(paths: ReportPaths, console: Console) -> None:
    if paths.verdicts.get("ok") or paths.invalid_included:
        table = paths.main_table  # a caution tells the waived gates
        notes = [each for each in table.notes if not each.startswith(WAIVED)]
        width = console.width if console.is_terminal else None
        console.print("", to_text(replace(table, notes=notes), width=width), sep="\n")
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
        for line in _of_invalid(paths, folder):
            console.print(line)


def _of_invalid(paths: ReportPaths, folder: str) -> list[str]:
    """What can be done about invalid runs: wait, looser limits, virtual time, or look at them."""
    if not paths.beyond_limits:
        return []
    look = f"look at them, marked as invalid: ./lab report {folder} --include-invalid"
    gates = ", ".join(f"{key} {words}" for key, words in paths.beyond_limits.items())
    busy = OF_THE_MACHINE.intersection(paths.beyond_limits)
    if not paths.resumable or not busy:  # another attempt ends the same, or a cause must be found
        return [f"{paths.verdicts['invalid']} invalid ({gates}). Valid:", f"  {look}"]
    waive = shlex.quote(f"limits.waive=[{','.join(paths.beyond_limits)}]")
    stored = planning.selections(paths.index.parents[1])
    name = shlex.quote(str(stored[0].get("name") if stored else paths.experiment))
    return [
        f"{paths.verdicts['invalid']} invalid ({gates}), as when others use the machine. Valid:",
        f"  wait until it is idle (./lab check says so), then ./lab resume {folder}",
        *(
            [f"  waive these gates, and say so: ./lab run {name} --set {waive} --out DIR"]
            if len(busy) == len(paths.beyond_limits)  # else a cause must be found first
            else []
        ),
        f"  need no idle machine: ./lab simulate {name} --out DIR",
        f"  {look}",
    ]


def _of_logs(damaged: list[tuple[str, list[str]]]) -> list[str]:
    """A sentence for each run whose logs are not whole; of many for the first ones."""
    told = [f"the logs of {key} are not whole: {'; '.join(found)}" for key, found in damaged]
    more = len(told) - _FEW
    return told if more <= 0 else [*told[:_FEW], f"the logs of {more} more runs are not whole"]


def keep(place: Place, *, as_json: bool = False) -> None:
    """Keep experiments' tables in experiments/results/, and write them into the documents.

    Args:
        place: whose tables.
        as_json: as of `write`.

    Raises:
        InputError: as `write` does.
    """
    console = terminal.console(stderr=as_json)
    try:
        for name in _names(place):
            folder = analysis.update_readme(place.results, name)
            terminal.say(console, f"kept: {folder}")
            told = verification.of_commits(folder)
            for said in told.refused:
                again = "./lab verify-results refuses these results"
                terminal.say(console, f"caution: {said}; {again}")
            for said in told.remarks:
                terminal.say(console, f"caution: {said}")
    except ValueError as error:
        raise InputError(str(error)) from None


def index_again(place: Place) -> None:
    """Write the index of the reports, since an experiment has gone."""
    analysis.write_index(place.results)


def _names(place: Place) -> list[str] | list[None]:
    """The experiments; with none at all, the loading of results says what is missing."""
    return [place.experiment] if place.experiment else place.known() or [None]
