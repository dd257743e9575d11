"""Phases that follow the training: by the gradient's norm, or by the accuracy."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.training.detector import (
    ETA,
    EVERY_ROUNDS,
    Detector,
    GradientNorm,
    Observation,
    norm_changed,
)
from testbed.training.phases.base import DetectorParameters


class GradientNormPhases(DetectorParameters):
    """DBLP's rule, critical where the gradient's norm changes strongly: by `eta` or more.

    DBLP, arXiv 2605.01989, takes eta = 0.5 from Accordion. Its text evaluates the rule once per
    epoch, its authors' code every ten rounds: `cadence` is `epoch` or a number of rounds.

    A third party reads the archived code of the evaluation so: it looks every 93 rounds, which is
    an epoch there, and by an off-by-one the first round of each epoch runs at P_high, where all of
    its bursts fall. That is `cadence: 93, first_round_high: true`.
    """

    detector: str = "gradient-norm"
    eta: float = Field(default=ETA, gt=0, description="relative change that is critical")
    cadence: Literal["epoch"] | Annotated[int, Field(ge=1)] = Field(
        default=EVERY_ROUNDS, description="rounds between two looks, or `epoch`"
    )
    first_round_high: bool = Field(
        default=False,
        description="the round of a look, but for round 0, is not critical, whatever was seen "
        "before",
    )

    def create(self, rounds_per_epoch: int) -> Detector:
        every = rounds_per_epoch if self.cadence == "epoch" else self.cadence
        return GradientNorm(
            eta=self.eta, every_rounds=every, first_round_high=self.first_round_high
        )


class AccordionPhases(DetectorParameters):
    """Critical where an epoch's gradient norm differs from that of earlier epochs.

    Accordion (Agarwal et al., MLSys 2021) compresses lightly when the norm of the gradient
    accumulated over an epoch has changed by eta = 0.5 or more since 10 epochs ago, or when the
    learning rate is about to fall. When fewer epochs have passed, this detector compares with the
    oldest (our choice).
    """

    eta: float = Field(default=0.5, gt=0, description="relative change that is critical")
    epochs_back: int = Field(default=10, ge=1, description="compares with the epoch so many before")

    def create(self, rounds_per_epoch: int) -> Detector:
        return Accordion(self, rounds_per_epoch)


class Accordion(Detector):
    """Decides at each epoch's end; the first epoch is critical, as in the published code."""

    remembered = ("_norms", "_sum")

    def __init__(self, options: AccordionPhases, rounds_per_epoch: int) -> None:
        self._options = options
        self._rounds_per_epoch = rounds_per_epoch
        self._norms: list[float] = []  # of the epochs before, oldest first
        self._sum: NDArray[np.float64] | None = None

    def observe(self, seen: Observation) -> None:
        if self._sum is None:
            self._sum = np.zeros(seen.gradient.shape, dtype=np.float64)
        self._sum += seen.gradient
        if (seen.round_number + 1) % self._rounds_per_epoch != 0:
            return
        norm = float(np.linalg.norm(self._sum))
        self._sum[:] = 0
        changed = not self._norms or norm_changed(self._norms[0], norm, self._options.eta)
        self._norms = [*self._norms, norm][-self._options.epochs_back :]
        self.critical = changed or seen.next_learning_rate < seen.learning_rate


class AccuracyGainPhases(DetectorParameters):
    """The DBLP authors' earlier rule, with phases by the accuracy gain per epoch.

    Their course report of March 2025 and the code of that time have three phases, which follow one
    another. A gain in test accuracy above 7 percentage points (8 in the report) is the beginning,
    a gain below 3 (2) is the end, and the beginning lasts at least until an accuracy of 50 %. They
    planned to tolerate most in the beginning and least in the end, so here the end is critical.
    Gains are differences between evaluations, as shares (0.03 is 3 points).
    """

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

    def __init__(self, options: AccuracyGainPhases, rounds_per_epoch: int) -> None:
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
