"""Tunes learning rates for a terminal: progress, a table of what is chosen, the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.tables import rendering
from testbed.bench import study
from testbed.bench.tuning import rule
from testbed.bench.tuning.training import train, trials
from testbed.experiment import Run
from testbed.shared.yaml_input import InputError

_COLUMNS = ("point", "arm", "learning rate", "mean on the validation part", "of each candidate")
_NOTE = "Chosen is the candidate with the best mean over seeds {}; of equal ones the smaller."


def run(runs: Sequence[Run], *, json_file: Path | None) -> None:
    """Train all candidates, print what is chosen, write the records and a table beside them.

    Raises:
        InputError: nothing is learnt, or the file cannot be written.
    """
    if any(not each.experiment.trains for each in runs):
        raise InputError("tune: programs have no learning rate")
    if any(each.experiment.training.pace.kind == "payload-only" for each in runs):
        raise InputError("tune: nothing is learnt with training.pace 'payload-only'")
    order = ("point", "arm", "learning_rate", "seed")
    study.run(list(trials(runs)), train, order=order, tables=tables, json_file=json_file)


def tables(records: Sequence[rule.Record]) -> list[rendering.Table]:
    """The table of what is chosen."""
    return [
        rendering.Table(
            title="Learning rates by the validation part",
            columns=list(_COLUMNS),
            rows=[rendering.row(*texts) for texts in rows(records)],
            notes=[_NOTE.format(", ".join(map(str, sorted({each["seed"] for each in records}))))],
            numeric=False,
        )
    ]


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
