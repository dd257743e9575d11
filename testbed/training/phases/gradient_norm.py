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

    A third party reads the archived code of the evaluation so: it looks every 93 rounds, which is
    an epoch there, and by an off-by-one the first round of each epoch runs at P_high, where all of
    its bursts fall. That is `cadence: 93, first_round_high: true`.
    """

    detector: str = "gradient-norm"
    eta: float = Field(default=0.5, gt=0, description="relative change that is critical")
    cadence: Cadence = Field(default=10, description="rounds between two looks, or `epoch`")
    first_round_high: bool = Field(
        default=False,
        # Without it, runs have the keys that they had before there was this key.
        exclude_if=lambda value: not value,
        description="the round of a look, but for round 0, is not critical, whatever was seen "
        "before",
    )

    def create(self, rounds_per_epoch: int) -> Detector:
        every = rounds_per_epoch if self.cadence == "epoch" else self.cadence
        return GradientNorm(
            eta=self.eta, every_rounds=every, first_round_high=self.first_round_high
        )


class GradientNorm(Detector):
    """Critical when the gradient's norm changed by at least `eta` since the last comparison.

    The rule of DBLP (arXiv 2605.01989, Eq. 1 as reported), after Accordion: with the L2 norm of
    the whole averaged gradient, | previous - current | / previous >= eta. It compares every
    `every_rounds` rounds, and its answer holds until the next comparison; training starts critical.
    """

    remembered = ("_previous",)

    def __init__(self, *, eta: float, every_rounds: int, first_round_high: bool = False) -> None:
        self._eta = eta
        self._first_round_high = first_round_high
        self._every_rounds = every_rounds
        self._previous: float | None = None

    def observe(self, seen: Observation) -> None:
        """Compare the norm where that is due; the first time only remember it."""
        if self._first_round_high and (seen.round_number + 1) % self._every_rounds == 0:
            self.critical = False  # what is said now holds in the next round's gather
        if seen.round_number % self._every_rounds != 0:
            return
        norm = float(np.linalg.norm(seen.gradient))
        previous, self._previous = self._previous, norm
        if previous is not None:
            self.critical = norm_changed(previous, norm, self._eta)
