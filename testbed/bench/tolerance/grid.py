"""The trainings of the tolerance study: tasks, losses, what is lost and what fills it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from testbed.bench.tolerance.simulation import Case, Cause, Task, When

SEEDS = (1, 2, 3, 4, 5)
LOSSES = (0.008, 0.024, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
# The paper's own, what else the order changes, and what the filling changes.
COMBINATIONS: tuple[tuple[Cause, str, str], ...] = (
    ("early-stop", "in-order", "zero"),
    ("early-stop", "rotating", "zero"),
    ("early-stop", "shuffled", "zero"),
    ("early-stop", "shuffled", "rescale"),
    ("network", "in-order", "zero"),
    ("network", "in-order", "rescale"),
    ("network", "in-order", "previous"),
    ("network", "in-order", "error-feedback"),
    ("early-stop", "shuffled", "rescale+error-feedback"),  # dblp-stream
    ("early-stop", "largest-magnitude-first", "error-feedback"),
)
PHASE_LOSSES = (0.4, 0.8)
PHASE_COMBINATIONS = (COMBINATIONS[0], COMBINATIONS[2], COMBINATIONS[4])
_WHEN: tuple[When, ...] = ("early", "late")


@dataclass(frozen=True)
class Study:
    """What is tried of a task; the slower ones have fewer points."""

    task: Task
    combinations: tuple[tuple[Cause, str, str], ...] = COMBINATIONS
    losses: tuple[float, ...] = LOSSES
    phases: bool = True


_OURS = COMBINATIONS[8:]
_FEW = (COMBINATIONS[0], COMBINATIONS[2], COMBINATIONS[4], COMBINATIONS[5], *_OURS)
_FEWEST = (COMBINATIONS[0], COMBINATIONS[4], COMBINATIONS[5])  # 40 s each
TEXT = Task(
    name="text",
    model="gpt2-tiny",
    dataset="stdlib-text",
    batch_size=16,
    rounds=300,
    evaluate_every=100,
    optimiser={"name": "adam", "learning_rate": 0.004, "momentum": 0.0, "weight_decay": 0.0},
)
STUDIES = (
    Study(
        Task(
            name="digits",
            model="small-cnn",
            dataset="digits",
            batch_size=32,
            rounds=300,
            evaluate_every=15,
            optimiser={"name": "sgd", "learning_rate": 0.05, "momentum": 0.5, "weight_decay": 0.0},
        )
    ),
    Study(
        Task(
            name="glyphs",
            model="small-cnn",
            dataset="glyphs",
            batch_size=16,
            rounds=450,
            evaluate_every=90,
            optimiser={"name": "sgd", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.0},
        ),
        combinations=_FEW,
        losses=(0.1, 0.4, 0.8),
        phases=False,
    ),
    Study(
        TEXT,
        combinations=_FEWEST,
        losses=(0.1, 0.4),
        phases=False,
    ),
)


def cases(*, quick: bool = False) -> list[Case]:
    """All cases, seed by seed; `quick` has two seeds and three losses."""
    seeds = SEEDS[:2] if quick else SEEDS
    return [case for study in STUDIES for seed in seeds for case in _of_study(study, seed, quick)]


def _of_study(study: Study, seed: int, quick: bool) -> Iterator[Case]:
    task = study.task
    losses = (0.1, 0.4, 0.8) if quick else study.losses

    def case(combination: tuple[Cause, str, str], loss: float, when: When = "always") -> Case:
        cause, order, filling = combination
        return Case(
            task=task, loss=loss, cause=cause, order=order, filling=filling, seed=seed, when=when
        )

    # Without loss neither order nor filling matters: one run serves all as their reference.
    yield case(COMBINATIONS[0], 0.0)
    for combination, loss in itertools.product(study.combinations, losses):
        yield case(combination, loss)
    if study.phases and not quick:
        for combination, loss, when in itertools.product(PHASE_COMBINATIONS, PHASE_LOSSES, _WHEN):
            yield case(combination, loss, when)
