"""Prints the factorial: progress, tables, records and a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.tables.rendering import Table
from testbed.bench import study
from testbed.bench.factorial import design, figure, report, training
from testbed.bench.factorial.findings import Findings
from testbed.bench.trainings import Record

_NAMES = "TASK/OPTIMISER-RATE/LINK/ORDER/FILLINGS/LOSS/sSEED"


def run(*, pattern: str, quick: bool, json_file: Path | None) -> None:
    """Train, print and write.

    Raises InputError for a pattern without cases and for a file that cannot be written.
    """
    study.run(
        study.named(design.cases(quick=quick), pattern, _NAMES),
        training.run,
        order=("task", "link_loss", "order", "filling", "loss", "seed"),
        tables=tables,
        draw=lambda records, path: figure.draw(Findings(records), path),
        json_file=json_file,
    )


def tables(records: Sequence[Record]) -> Iterator[Table]:
    """All for which there are trainings."""
    return report.tables(Findings(records))
