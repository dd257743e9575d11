"""Prints the tolerance study: progress, a table, records and a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from analysis.statistics.intervals import Estimate
from analysis.tables import rendering
from testbed.bench import record_file
from testbed.bench.tolerance import execution, figure, findings, grid
from testbed.bench.tolerance.simulation import Case
from testbed.shared.yaml_input import InputError

Found = Mapping[findings.Group, Mapping[float, Estimate]]

_UNIT = (
    f"points of accuracy, or per cent of perplexity; harmless: {findings.HARMLESS_POINTS:g} at "
    "most, with the whole interval"
)
_SCHEMA = 1
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
    facts = record_file.machine()
    if json_file is None:
        records = list(_trained(selected, console, None))
    else:
        done = execution.read(execution.partial_file(json_file), selected)
        if done:
            console.print(f"{len(done)} of {len(selected)} cases were done before")
        left = [case for case in selected if case.name not in done]
        keeper = execution.Keeper(execution.partial_file(json_file))
        records = [*done.values(), *_trained(left, console, keeper)]
    records.sort(key=itemgetter("task", "cause", "order", "filling", "when", "loss", "seed"))
    found = findings.harm(records)
    table = Table(*_COLUMNS, box=None)
    for row in findings.rows(found):
        table.add_row(*row)
    console.print(table)
    console.print(_UNIT)
    if json_file is not None:
        record_file.write(json_file, records, facts, schema=_SCHEMA)
        keeper.drop()
        console.print(f"records: {json_file}")
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


def _trained(
    selected: list[Case], console: Console, keeper: execution.Keeper | None
) -> Iterator[dict[str, Any]]:
    """The records of the cases, in the order in which they are done."""
    shown = track(
        execution.measure(selected),
        description="training",
        total=len(selected),
        console=console,
        disable=not console.is_terminal,
    )
    for case, record in shown:
        if keeper is not None:
            keeper.keep(case, record)
        yield record
