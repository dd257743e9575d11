"""Writes and prints reports of finished runs; keeps, verifies and exports results."""

import functools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import analysis
from analysis.report import kept_results, verification
from analysis.report.writing import ReportPaths
from analysis.tables.by_arm import WAIVED
from analysis.tables.rendering import to_csv, to_latex, to_text
from testbed.cli import terminal
from testbed.cli.places import Place
from testbed.experiment.run import key_of
from testbed.run import exporting
from testbed.shared import run_directory, units
from testbed.shared.yaml_input import InputError

_MANY = 50  # runs take so long to read that it is said


def write(place: Place, *, stderr: bool = False) -> list[ReportPaths]:
    """Write the report of an experiment, or of all; print its main table and where it is."""
    place.require()
    console = Console(highlight=False, markup=False, soft_wrap=True, stderr=stderr)
    written = []
    try:
        for name in _names(place):
            own = place.key and run_directory.is_of_script(
                run_directory.read_or_empty(place.folder / "config.json")
            )
            if name and (count := len(list((place.results / name).glob("*/status.json")))) > _MANY:
                console.print(f"{name}: reading {count} runs and drawing figures")
            where = (place.folder, None) if own else (place.results, name)
            written.append(analysis.write_report(*where))
            _show(written[-1], console)
    except ValueError as error:
        raise InputError(str(error)) from None
    if place.experiments()[1:]:
        console.print(f"all reports: {written[-1].overview}")
    return written


def _show(paths: ReportPaths, console: Console) -> None:
    if paths.verdicts.get("ok"):
        table = paths.main_table  # a caution tells the waived gates
        notes = [note for note in table.notes if not note.startswith(WAIVED)]
        width = console.width if console.is_terminal else None
        console.print("", to_text(replace(table, notes=notes), width=width), sep="\n")
    else:
        counts = ", ".join(f"{n} {word}" for word, n in paths.verdicts.items() if n)
        console.print(f"\n{paths.experiment}: no run is ok ({counts})")
    cautions = [*paths.cautions]
    if damaged := [key for key, _ in paths.damaged]:
        count = f" and of {len(damaged) - 1} more runs" if len(damaged) > 1 else ""
        cautions.append(f"the logs of {damaged[0]}{count} are not whole; the page says why")
    for caution in cautions:
        console.print(f"caution: {caution}", soft_wrap=not console.is_terminal)
    console.print(f"report: {paths.index}")
    if sum(paths.verdicts.values()) > paths.verdicts.get("ok", 0):
        folder = shlex.quote(str(paths.index.parents[1]))
        again = f", ./lab run {folder} runs them" if paths.resumable else ""
        console.print(f"what to do: ./lab explain {folder} says why runs are not ok{again}")


def keep(place: Place) -> None:
    """Keep experiments' tables in experiments/results/, and write them into the documents."""
    console = terminal.console()
    try:
        for name in _names(place):
            folder = kept_results.keep(place.results, name, root=kept_results.ROOT)
            kept_results.write_readme(root=kept_results.ROOT)
            terminal.say(console, f"kept: {folder}")
            refused, remarks = verification.of_commits(folder)
            wrong = [f"{line}; ./lab verify-results refuses these results" for line in refused]
            for line in (*wrong, *remarks):
                terminal.say(console, f"caution: {line}")
    except ValueError as error:
        raise InputError(str(error)) from None


def verify(*, write: bool, root: Path = kept_results.ROOT) -> bool:
    count, say = len(verification.results(root)), functools.partial(print, flush=True)
    say(f"recomputing {count} kept results, then the numbers of the pages")
    try:
        if write:
            verification.renew(root=root)
        verified = verification.verify(root=root, key_of=key_of, say=say)
    except ValueError as error:
        raise InputError(str(error)) from None
    for line in verified.remarks:
        print(line)
    for line in verified.differences:
        print(f"differs: {line}", file=sys.stderr)
    agrees = "all agree with what is kept" if not verified.differences else "not all agree"
    print(f"{len(verified.recomputed)} results recomputed: {agrees}")
    return not verified.differences


def export(chosen: Sequence[Place], form: str, output: Path | None) -> None:
    """Print or write an experiment's main table, or pack its results, after its report."""
    if form not in ("csv", "latex", "zip"):
        raise InputError(f"--format {form}: valid: csv, latex, zip")
    if len(chosen) != 1 or (place := chosen[0]).experiment is None or place.key is not None:
        raise InputError("--format: valid: one experiment's name, its YAML file, or its folder")
    if form == "zip":
        target = output or Path(f"{place.experiment}.zip")
        exporting.refuse(place.folder, target)
        write(place)
        size = exporting.export(place.folder, target)
        print(f"archive: {target}, {units.size_in_words(size)}")
        return
    (written,) = write(place, stderr=True)
    text = (to_csv if form == "csv" else to_latex)(written.main_table)
    if output is None:
        print(text, end="")
        return
    output.write_text(text, encoding="utf-8")
    print(f"table: {output}")


def _names(place: Place) -> list[str] | list[None]:
    """The experiments; with none at all, the loading of results says what is missing."""
    return [place.experiment] if place.experiment else place.experiments() or [None]
