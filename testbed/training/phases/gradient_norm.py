"""`gradient-norm`: DBLP's rule, critical where the gradient's norm changes strongly."""

import numpy as np
from pydantic import Field

from testbed.training.phases.base import (
    Cadence,
    Detector,
    DetectorParameters,
    Observation,
    norm_changed,
)


class Parameters(DetectorParameters):
    """A relative change of the averaged gradient's norm of `eta` or more is critical.

    DBLP, arXiv 2605.01989, takes eta = 0.5 from Accordion. Its text evaluates the rule once per
    epoch, its authors' code every ten rounds: `cadence` is `epoch` or a number of rounds.
    """

    detector: str = "gradient-norm"
    eta: float = Field(default=0.5, gt=0, description="relative change that is critical")
    cadence: Cadence = Field(default=10, description="rounds between two looks, or `epoch`")

    def create(self, rounds_per_epoch: int) -> Detector:
        every = rounds_per_epoch if self.cadence == "epoch" else self.cadence
        return GradientNorm(eta=self.eta, every_rounds=every)


class GradientNorm(Detector):
    """Critical when the gradient's norm changed by at least `eta` since the last comparison.

    The rule of DBLP (arXiv 2605.01989, Eq. 1 as reported), after Accordion: with the L2 norm of
    the whole averaged gradient, | previous - current | / previous >= eta. It compares every
    `every_rounds` rounds, and its answer holds until the next comparison; training starts critical.
    """

    remembered = ("_previous",)

    def __init__(self, *, eta: float, every_rounds: int) -> None:
        self._eta = eta
        self._every_rounds = every_rounds
        self._previous: float | None = None

    def observe(self, seen: Observation) -> None:
        """Compare the norm where that is due; the first time only remember it."""
        if seen.round_number % self._every_rounds != 0:
            return
        norm = float(np.linalg.norm(seen.gradient))
        previous, self._previous = self._previous, norm
        if previous is not None:
            self.critical = norm_changed(previous, norm, self._eta)
