"""The trainings of the factorial: every order, memory and filling, all with the same loss.

Each receiver gives up exactly `LOSS` of the chunks, on both legs, in all rounds, and links lose
`LINK_LOSS` of what is sent before it stops. So the end of the order is given up, and some of the
rest, which differs between the workers.

A learning rate that suits one cell need not suit another: zeros act like a smaller rate, rescaling
like a larger one. So every cell is trained at each rate of its task.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from testbed.bench.tolerance.grid import TEXT
from testbed.bench.tolerance.simulation import Case, Task

SEEDS = (1, 2, 3, 4, 5)
LOSS = 0.4
LINK_LOSS = 0.2
_MEASURE_EVERY = 50  # rounds

# The first level of each factor is DBLP's. Memory is error feedback on no leg, on the gather, on
# both. A filling holds for both legs; with a memory it is what the receiver does meanwhile.
LEVELS = {
    "order": ("in-order", "rotating", "shuffled", "largest-magnitude-first"),
    "memory": ("none", "gather", "both"),
    "filling": ("zero", "rescale"),
}


class Cell(NamedTuple):
    """One combination of the factors' levels."""

    order: str
    memory: str
    filling: str

    @property
    def fillings(self) -> str:
        """The two fillings of a `Case` that make this memory and filling."""
        remembers = f"error-feedback:fill={self.filling}"
        gather = self.filling if self.memory == "none" else remembers
        broadcast = remembers if self.memory == "both" else self.filling
        return f"{gather}+{broadcast}"


CELLS = tuple(itertools.starmap(Cell, itertools.product(*LEVELS.values())))
DBLP = CELLS[0]


@dataclass(frozen=True)
class Subject:
    """A task with one optimiser, at several learning rates.

    Args:
        task: at any rate.
        rates: the learning rates that each cell is trained at.
        cells: which are trained.
        link_loss: of all cells.
    """

    task: Task
    rates: Sequence[float]
    cells: Sequence[Cell] = CELLS
    link_loss: float = LINK_LOSS

    def at(self, rate: float) -> Task:
        """The task at one of the rates."""
        optimiser = {**self.task.optimiser, "learning_rate": rate}
        name = f"{self.task.name}/{optimiser['name']}-{rate:g}"
        return replace(self.task, name=name, optimiser=optimiser)


def _optimiser(name: str, momentum: float = 0.0) -> dict[str, Any]:
    return {"name": name, "learning_rate": 0.0, "momentum": momentum, "weight_decay": 0.0}


_GLYPHS = {"name": "glyphs", "side": 16, "size": 20_000, "noise": 0.075}  # 4000 for the test
_MLP = Task(
    name="glyphs-mlp",
    model="mlp",
    dataset=_GLYPHS,
    batch_size=16,
    rounds=200,
    evaluate_every=200,
    optimiser=_optimiser("sgd", momentum=0.9),
    evaluated=1,
)
# Few rounds: later all cells are so good that they hardly differ.
_CNN = Task(
    name="digits-cnn",
    model="small-cnn",
    dataset="digits",
    batch_size=16,
    rounds=40,
    evaluate_every=40,
    optimiser=_optimiser("sgd", momentum=0.5),
    evaluated=1,
)
# The tolerance study's, where the perplexity was better with loss.
_TEXT = replace(TEXT, optimiser=_optimiser("adam"), evaluated=1)
FACTORIAL = (
    Subject(_MLP, rates=(0.005, 0.02, 0.08)),
    Subject(replace(_MLP, optimiser=_optimiser("adam")), rates=(0.001, 0.004, 0.016)),
    Subject(_CNN, rates=(0.0125, 0.05, 0.2)),
    Subject(replace(_CNN, optimiser=_optimiser("adam")), rates=(0.001, 0.004, 0.016)),
)
RATES = Subject(_TEXT, rates=(0.001, 0.002, 0.004, 0.008), cells=(DBLP,), link_loss=0.0)
SUBJECTS = (*FACTORIAL, RATES)


def cases(*, quick: bool = False) -> list[Case]:
    """All cases, subject by subject; `quick` has two seeds of one, at one rate.

    Each cell is compared with others of the same task, rate and seed, and with no loss.
    """
    seeds = SEEDS[:2] if quick else SEEDS
    subjects = (replace(FACTORIAL[0], rates=FACTORIAL[0].rates[1:2]),) if quick else SUBJECTS
    return [case for each in subjects for case in _of_subject(each, seeds)]


def _of_subject(subject: Subject, seeds: Sequence[int]) -> Iterator[Case]:
    for rate, seed in itertools.product(subject.rates, seeds):
        without = Case(
            task=subject.at(rate),
            loss=0.0,
            cause="early-stop",
            order=DBLP.order,
            filling=DBLP.fillings,
            seed=seed,
        )
        yield without
        for cell in subject.cells:
            yield replace(
                without,
                loss=LOSS,
                order=cell.order,
                filling=cell.fillings,
                link_loss=subject.link_loss,
                measure_every=_MEASURE_EVERY,
            )
