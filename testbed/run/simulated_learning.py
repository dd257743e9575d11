"""Learning in virtual time: the lab's learners in one process, each with random numbers of its own.

So each computes to the last bit what it computes in a lab.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from testbed.training.filling import Vector
from testbed.training.learner import Learner


@contextmanager
def torch_as_in_a_lab() -> Iterator[None]:
    """One thread and deterministic algorithms, as in the processes of a run."""
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(is_deterministic)
        torch.set_rng_state(random)


class OwnRandomNumbers(Learner):
    """A learner that shares torch's generator with nobody."""

    def __init__(self, make: Callable[[], Learner]) -> None:
        self._random = torch.get_rng_state()
        with self._own():
            self._learner = make()

    @contextmanager
    def _own(self) -> Iterator[None]:
        others = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(others)

    def gradient(self, into: Vector) -> float | None:
        with self._own():
            return self._learner.gradient(into)

    def apply(self, update: Vector, learning_rate: float) -> None:
        with self._own():
            self._learner.apply(update, learning_rate)

    def snapshot(self) -> Callable[[], None]:
        return self._learner.snapshot()

    def evaluate(self) -> float | None:
        with self._own():
            return self._learner.evaluate()

    def weights(self, into: Vector) -> None:
        self._learner.weights(into)

    def save(self, path: Path) -> None:
        self._learner.save(path)
