"""`accuracy-gain`: the DBLP authors' earlier rule, with phases by the accuracy gain per epoch.

Their course report of March 2025 and the code of that time have three phases, which follow one
another, by the gain in test accuracy per epoch. A gain above 7 percentage points (8 in the report)
is the beginning, a gain below 3 (2) is the end, and the beginning lasts at least until an accuracy
of 50 %. They planned to tolerate most in the beginning and least in the end, so here the end is
critical.
"""

from pydantic import Field

from testbed.training.detector import Detector, Observation
from testbed.training.phases.base import DetectorParameters


class Parameters(DetectorParameters):
    """Gains are differences of accuracy between evaluations, as shares (0.03 is 3 points)."""

    final_gain: float = Field(
        default=0.03, gt=0, lt=1, description="critical for good once an epoch gains less accuracy"
    )
    least_accuracy: float = Field(
        default=0.5, ge=0, le=1, description="not critical while the accuracy is below this"
    )

    def create(self, rounds_per_epoch: int) -> Detector:
        return AccuracyGain(self, rounds_per_epoch)


class AccuracyGain(Detector):
    """Critical for good from the first epoch whose gain is small."""

    critical = False

    remembered = ("_epoch", "_before", "_latest")

    def __init__(self, options: Parameters, rounds_per_epoch: int) -> None:
        self._options = options
        self._rounds_per_epoch = rounds_per_epoch
        self._epoch = 0
        self._before: float | None = None  # accuracy at the end of the epoch before
        self._latest: float | None = None

    def observe(self, seen: Observation) -> None:
        epoch = seen.round_number // self._rounds_per_epoch
        if epoch != self._epoch and self._latest is not None:
            # An evaluation's accuracy arrives one round later, so the old epoch's is known now.
            self._look(self._latest)
            self._epoch = epoch
        if seen.accuracy is not None:
            self._latest = seen.accuracy

    def _look(self, accuracy: float) -> None:
        before, self._before = self._before, accuracy
        if before is None or accuracy < self._options.least_accuracy:
            return
        if accuracy - before < self._options.final_gain:
            self.critical = True
