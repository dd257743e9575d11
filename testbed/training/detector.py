"""The interface of phase detectors: after each round one decides whether training is critical.

It and DBLP's rule need numpy alone: `testbed.ddp` uses them.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.training import logs

ETA = 0.5
EVERY_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The information that a detector gets after each round's gather.

    Attributes:
        round_number: from 0.
        gradient: the averaged gradient, flat; valid during the call only.
        learning_rate: of this round.
        accuracy: of the test part, 0 to 1, in the first round after an evaluation; else None.
    """

    round_number: int
    gradient: NDArray[np.float32]
    learning_rate: float = 0.0
    accuracy: float | None = None


class Detector(ABC):
    """Decides whether training is critical. `critical` has its start value before round 0."""

    critical: bool = True
    remembered: ClassVar[tuple[str, ...]] = ()  # attributes that a checkpoint stores

    @abstractmethod
    def observe(self, seen: Observation) -> None:
        """Take a round into account; sets `critical` until the next call."""

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("critical", *self.remembered)}

    def restore(self, state: dict[str, Any]) -> None:
        for name in ("critical", *self.remembered):
            setattr(self, name, state[name])


class GradientNorm(Detector):
    """Critical when the gradient's norm changed by at least `eta` since the last comparison.

    The rule of DBLP (arXiv 2605.01989, Eq. 1 as reported), after Accordion: with the L2 norm of
    the whole averaged gradient. Its answer holds until the next comparison, `every_rounds` rounds
    later; training starts critical.
    """

    remembered = ("_previous",)

    def __init__(
        self, *, eta: float = ETA, every_rounds: int = EVERY_ROUNDS, first_round_high: bool = False
    ) -> None:
        self._eta = eta
        self._first_round_high = first_round_high
        self._every_rounds = every_rounds
        self._previous: float | None = None

    def observe(self, seen: Observation) -> None:
        if self._first_round_high and (seen.round_number + 1) % self._every_rounds == 0:
            self.critical = False  # this holds in the next round's gather
        if seen.round_number % self._every_rounds != 0:
            return
        norm = logs.norm(seen.gradient)
        previous, self._previous = self._previous, norm
        if previous is None:
            return
        comparable = math.isfinite(previous) and math.isfinite(norm) and previous != 0
        self.critical = not comparable or abs(previous - norm) / previous >= self._eta
