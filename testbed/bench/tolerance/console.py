"""Prints the tolerance study: progress, a table, records and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from analysis.statistics.intervals import Estimate
from analysis.tables import rendering
from testbed.bench import record_file, trainings
from testbed.bench.tolerance import figure, findings, grid, simulation
from testbed.shared.yaml_input import InputError

Found = Mapping[findings.Group, Mapping[float, Estimate]]

_UNIT = (
    f"points of accuracy, or per cent of perplexity; harmless: {findings.HARMLESS_POINTS:g} at "
    "most, with the whole interval"
)
_SCHEMA = 1
_ORDER = itemgetter("task", "cause", "order", "filling", "when", "loss", "seed")
_COLUMNS = ("task", "lost, filled with", "when", "worse than without loss, by loss", "harmless to")


def run(*, pattern: str, quick: bool, json_file: Path | None) -> bool:
    """Train, print and write; return True when all is done.

    Raises InputError for a pattern without cases and for a file that cannot be written.
    """
    selected = grid.cases(pattern, quick=quick)
    if not selected:
        raise InputError(
            f"--cases {pattern}: matches none; names are TASK/CAUSE/ORDER/FILLING/WHEN/LOSS/sSEED"
        )
    record_file.require_place(json_file)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    records = trainings.train(
        selected,
        simulation.run,
        json_file=json_file,
        console=console,
        order=_ORDER,
        schema=_SCHEMA,
    )
    found = findings.harm(records)
    table = Table(*_COLUMNS, box=None)
    for row in findings.rows(found):
        table.add_row(*row)
    console.print(table)
    console.print(_UNIT)
    if json_file is not None:
        document = json_file.with_suffix(".md")
        document.write_text(markdown(found), encoding="utf-8")
        console.print(f"table: {document}")
        picture = json_file.with_suffix(".png")
        if figure.draw(found, {each["task"]: each["metric"] for each in records}, picture):
            console.print(f"figure: {picture}")
    return True


def markdown(found: Found) -> str:
    """The table of what was found, as a document."""
    table = rendering.Table(
        title="How much worse than without loss, by the share of chunks given up",
        columns=list(_COLUMNS),
        rows=[rendering.row(*texts) for texts in findings.rows(found)],
        notes=[_UNIT],
        numeric=False,
    )
    return rendering.to_markdown(table)
