"""The interface of phase detectors, which decide after each round whether training is critical.

Write a `Parameters` section (what YAML may say) whose `create` makes a `Detector`. In this package
it also needs a line in `DETECTORS`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.shared import own_code
from testbed.shared.section import Section

Cadence = Literal["epoch"] | Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The information that a detector gets after each round's gather.

    Attributes:
        round_number: from 0.
        gradient: the averaged gradient, flat; valid during the call only.
        learning_rate, next_learning_rate: of this round, and of the first round of the next epoch.
        accuracy: share of correctly classified test samples, in the first round after an
            evaluation; None in all others, and for tasks that have no accuracy.
    """

    round_number: int
    gradient: NDArray[np.float32]
    learning_rate: float
    next_learning_rate: float
    accuracy: float | None = None


class Detector(ABC):
    """Decides whether training is critical. `critical` has its start value before round 0."""

    critical: bool = True
    remembered: ClassVar[tuple[str, ...]] = ()  # attributes that a checkpoint stores

    @abstractmethod
    def observe(self, seen: Observation) -> None:
        """Take a round into account; sets `critical` until the next call."""

    def state(self) -> dict[str, Any]:
        """The state that a checkpoint stores: plain values, lists and arrays."""
        return {name: getattr(self, name) for name in ("critical", *self.remembered)}

    def restore(self, state: dict[str, Any]) -> None:
        for name in ("critical", *self.remembered):
            setattr(self, name, state[name])


def observe(detector: Detector, seen: Observation) -> bool:
    """Let a detector see a round; returns whether training is critical now.

    Raises:
        InputError: it has set `critical` to something else than True or False.
    """
    detector.observe(seen)
    if not isinstance(detector.critical, bool | np.bool_):
        raise own_code.unfit(detector, "critical", detector.critical, "True or False")
    return bool(detector.critical)


class DetectorParameters(Section):
    """A detector's section of an experiment."""

    detector: str

    def create(self, rounds_per_epoch: int) -> Detector:
        """Create a detector; one epoch has `rounds_per_epoch` rounds."""
        raise NotImplementedError


def norm_changed(previous: float, current: float, eta: float) -> bool:
    """Whether | previous - current | / previous >= eta.

    A previous norm of zero counts as a change, as in Accordion's code, and so does a norm that is
    not finite.
    """
    if not (math.isfinite(previous) and math.isfinite(current)) or previous == 0:
        return True
    return abs(previous - current) / previous >= eta
