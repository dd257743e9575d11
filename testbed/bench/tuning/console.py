"""Tunes learning rates for a terminal: progress, a table of what is chosen, the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from analysis.tables import rendering
from testbed.bench import record_file, trainings
from testbed.bench.tuning import rule
from testbed.bench.tuning.training import train, trials
from testbed.experiment import Run
from testbed.shared.yaml_input import InputError

_SCHEMA = 1
_COLUMNS = ("point", "arm", "learning rate", "mean on the validation part", "of each candidate")
_NOTE = (
    "Chosen is the candidate with the best mean over seeds "
    f"{', '.join(map(str, rule.SEEDS))}; of equal ones the smaller."
)


def run(runs: Sequence[Run], *, json_file: Path | None) -> None:
    """Train all candidates, print what is chosen, write the records and a table beside them.

    Raises:
        InputError: nothing is learnt, or the file cannot be written.
    """
    if any(not each.experiment.trains for each in runs):
        raise InputError("tune: programs have no learning rate")
    if any(each.experiment.training.pace.kind == "payload-only" for each in runs):
        raise InputError("tune: nothing is learnt with training.pace 'payload-only'")
    record_file.require_place(json_file)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    records = trainings.train(
        list(trials(runs)),
        train,
        json_file=json_file,
        console=console,
        order=itemgetter("point", "arm", "learning_rate", "seed"),
        schema=_SCHEMA,
    )
    table = Table(*_COLUMNS, box=None)
    for row in rows(records):
        table.add_row(*row)
    console.print(table)
    console.print(_NOTE)
    if json_file is not None:
        document = json_file.with_suffix(".md")
        document.write_text(markdown(records), encoding="utf-8")
        console.print(f"table: {document}")


def markdown(records: Sequence[rule.Record]) -> str:
    """The table of what is chosen, as a document."""
    table = rendering.Table(
        title="Learning rates by the validation part",
        columns=list(_COLUMNS),
        rows=[rendering.row(*texts) for texts in rows(records)],
        notes=[_NOTE],
        numeric=False,
    )
    return rendering.to_markdown(table)


def rows(records: Sequence[rule.Record]) -> Iterator[list[str]]:
    """A line for each point and arm."""
    means = rule.means(records)
    for group, choice in rule.choices(records):
        of_each = ", ".join(
            f"{rate:g}: {'diverges' if mean is None else f'{mean:.4g}'}"
            for rate, mean in means[group].items()
        )
        told = "none" if choice is None else f"{choice.learning_rate:g}"
        if choice is not None and choice.at_end:
            told += " (at the end of the candidates)"
        best = "-" if choice is None else f"{choice.metric} {choice.mean:.4g}"
        yield [group.point, group.arm, told, best, of_each]
