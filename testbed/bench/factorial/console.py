"""Prints the factorial: progress, tables, records and a figure."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path

from rich.console import Console

from analysis.tables import rendering
from testbed.bench import record_file, trainings
from testbed.bench.factorial import design, figure, report
from testbed.bench.factorial.findings import Findings
from testbed.bench.tolerance import simulation
from testbed.shared.yaml_input import InputError

_SCHEMA = 1
_ORDER = itemgetter("task", "link_loss", "order", "filling", "loss", "seed")


def run(*, pattern: str, quick: bool, json_file: Path | None) -> bool:
    """Train, print and write; return True when all is done.

    Raises InputError for a pattern without cases and for a file that cannot be written.
    """
    selected = design.cases(pattern, quick=quick)
    if not selected:
        raise InputError(
            f"--cases {pattern}: matches none; names are "
            "TASK/OPTIMISER-RATE/LINK/ORDER/FILLINGS/always/LOSS/sSEED"
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
    found = Findings(records)
    for table in report.tables(found):
        console.print(rendering.to_text(table))
    if json_file is not None:
        document = json_file.with_suffix(".md")
        document.write_text(markdown(found), encoding="utf-8")
        console.print(f"tables: {document}")
        picture = json_file.with_suffix(".png")
        figure.draw(found, picture)
        console.print(f"figure: {picture}")
    return True


def markdown(found: Findings) -> str:
    """The tables of what was found, as a document."""
    return "\n".join(rendering.to_markdown(table) for table in report.tables(found))
