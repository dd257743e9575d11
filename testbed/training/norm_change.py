"""DBLP's rule for phases: critical where the gradient's norm changes strongly."""

import numpy as np

from testbed.training.detector import Detector, Observation, norm_changed

ETA = 0.5
EVERY_ROUNDS = 10


class GradientNorm(Detector):
    """Critical when the gradient's norm changed by at least `eta` since the last comparison.

    The rule of DBLP (arXiv 2605.01989, Eq. 1 as reported), after Accordion: with the L2 norm of
    the whole averaged gradient, | previous - current | / previous >= eta. It compares every
    `every_rounds` rounds, and its answer holds until the next comparison; training starts critical.
    """

    remembered = ("_previous",)

    def __init__(
        self,
        *,
        eta: float = ETA,
        every_rounds: int = EVERY_ROUNDS,
        first_round_high: bool = False,
    ) -> None:
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
