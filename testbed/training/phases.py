"""When training is critical, so that little loss is tolerated."""

from __future__ import annotations

import math


class GradientNormDetector:
    """Critical when the gradient's norm changed by at least `eta` since the last look.

    The rule of DBLP (arXiv 2605.01989, Eq. 1 as reported), after Accordion: with the L2 norm of
    the whole averaged gradient, | previous - current | / previous >= eta. It looks every
    `every_rounds` rounds and its answer holds until the next look; training starts critical.
    """

    def __init__(self, *, eta: float, every_rounds: int) -> None:
        self._eta = eta
        self._every_rounds = every_rounds
        self._previous: float | None = None
        self.critical = True

    def observe(self, round_number: int, norm: float) -> None:
        """Take the norm of a round's averaged gradient into account.

        The first look only remembers the norm: there is nothing to compare with, and training
        stays critical. A norm of zero or one that is not finite counts as a change.
        """
        if round_number % self._every_rounds != 0:
            return
        previous, self._previous = self._previous, norm
        if previous is None:
            return
        if not (math.isfinite(norm) and math.isfinite(previous)) or previous == 0:
            self.critical = True
        else:
            self.critical = abs(previous - norm) / previous >= self._eta
