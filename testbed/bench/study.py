"""A study of trainings in virtual time: progress, then tables, records and a figure."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path

from rich.console import Console

from analysis.tables import rendering
from testbed.bench import record_file, trainings
from testbed.bench.trainings import AnyTraining, Record
from testbed.shared.yaml_input import InputError

Tables = Callable[[Sequence[Record]], Iterable[rendering.Table]]


def named(selected: Sequence[AnyTraining], pattern: str, form: str) -> list[AnyTraining]:
    """Those whose name matches the pattern of `--cases`.

    Args:
        form: of the names, for the message.

    Raises:
        InputError: there is none.
    """
    found = [each for each in selected if fnmatch.fnmatchcase(each.name, pattern)]
    if not found:
        raise InputError(f"--cases {pattern}: matches none; names are {form}")
    return found


def run(
    selected: Sequence[AnyTraining],
    train: Callable[[AnyTraining], Record],
    *,
    order: Sequence[str],
    tables: Tables,
    json_file: Path | None,
    draw: Callable[[Sequence[Record], Path], bool] | None = None,
) -> None:
    """Train what is not done yet, print tables; write them beside the records, and a figure.

    Args:
        order: the keys by which the records are sorted.
        draw: writes the figure; False where there is nothing to draw.

    Raises:
        InputError: the file cannot be written.
    """
    record_file.require_place(json_file)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    records = trainings.train(
        selected, train, json_file=json_file, console=console, order=itemgetter(*order)
    )
    for table in tables(records):
        console.print(rendering.to_text(table))
    if json_file is None:
        return
    document, picture = json_file.with_suffix(".md"), json_file.with_suffix(".png")
    document.write_text(markdown(tables, records), encoding="utf-8")
    console.print(f"tables: {document}")
    if draw is not None and draw(records, picture):
        console.print(f"figure: {picture}")


def markdown(tables: Tables, records: Sequence[Record]) -> str:
    """The tables as a document."""
    return "\n".join(map(rendering.to_markdown, tables(records)))
