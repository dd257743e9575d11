"""Prints the tolerance study: progress, a table, records and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.tables import rendering
from testbed.bench import study
from testbed.bench.tolerance import figure, findings, grid, simulation
from testbed.bench.trainings import Record

_NAMES = "TASK/CAUSE/ORDER/FILLING/WHEN/LOSS/sSEED"
_UNIT = (
    f"points of accuracy, or per cent of perplexity; harmless: {findings.HARMLESS_POINTS:g} at "
    "most, with the whole interval"
)
_COLUMNS = ("task", "lost, filled with", "when", "worse than without loss, by loss", "harmless to")


def run(*, pattern: str, quick: bool, json_file: Path | None) -> None:
    """Train, print and write.

    Raises InputError for a pattern without cases and for a file that cannot be written.
    """
    study.run(
        study.named(grid.cases(quick=quick), pattern, _NAMES),
        simulation.run,
        order=("task", "cause", "order", "filling", "when", "loss", "seed"),
        tables=tables,
        draw=_draw,
        json_file=json_file,
    )


def tables(records: Sequence[Record]) -> list[rendering.Table]:
    """The table of what was found."""
    return [
        rendering.Table(
            title="How much worse than without loss, by the share of chunks given up",
            columns=list(_COLUMNS),
            rows=[rendering.row(*texts) for texts in findings.rows(findings.harm(records))],
            notes=[_UNIT],
            numeric=False,
        )
    ]


def _draw(records: Sequence[Record], path: Path) -> bool:
    metrics = {each["task"]: each["metric"] for each in records}
    return figure.draw(findings.harm(records), metrics, path)
