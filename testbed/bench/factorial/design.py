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
from typing import NamedTuple

from testbed.bench.factorial.training import Case, Task

SEEDS = (1, 2, 3, 4, 5)
LOSS = 0.4
LINK_LOSS = 0.2

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
    def legs(self) -> tuple[str, str]:
        """The fillings of gather and broadcast that make this memory and filling."""
        remembers = f"error-feedback:fill={self.filling}"
        gather = self.filling if self.memory == "none" else remembers
        return gather, remembers if self.memory == "both" else self.filling

    @property
    def fillings(self) -> str:
        """They in a record."""
        return "+".join(self.legs)


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
        return replace(self.task, learning_rate=rate)


_GLYPHS = {"name": "glyphs", "side": 16, "size": 20_000, "noise": 0.075}  # 4000 for the test
_MLP = Task(
    name="glyphs-mlp",
    model="mlp",
    dataset=_GLYPHS,
    batch_size=16,
    rounds=200,
    optimiser="sgd",
    momentum=0.9,
)
# Few rounds: later all cells are so good that they hardly differ.
_CNN = Task(
    name="digits-cnn",
    model="small-cnn",
    dataset="digits",
    batch_size=16,
    rounds=40,
    optimiser="sgd",
    momentum=0.5,
)
_TEXT = Task(
    name="text",
    model="gpt2-tiny",
    dataset="stdlib-text",
    batch_size=16,
    rounds=300,
    optimiser="adam",
)
FACTORIAL = (
    Subject(_MLP, rates=(0.005, 0.02, 0.08)),
    Subject(replace(_MLP, optimiser="adam", momentum=0.0), rates=(0.001, 0.004, 0.016)),
    Subject(_CNN, rates=(0.0125, 0.05, 0.2)),
    Subject(replace(_CNN, optimiser="adam", momentum=0.0), rates=(0.001, 0.004, 0.016)),
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
        gather, broadcast = DBLP.legs
        without = Case(
            task=subject.at(rate),
            loss=0.0,
            link_loss=0.0,
            order=DBLP.order,
            gather=gather,
            broadcast=broadcast,
            seed=seed,
        )
        yield without
        for cell in subject.cells:
            gather, broadcast = cell.legs
            yield replace(
                without,
                loss=LOSS,
                link_loss=subject.link_loss,
                order=cell.order,
                gather=gather,
                broadcast=broadcast,
            )
