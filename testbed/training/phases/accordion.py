"""`accordion`: critical where an epoch's gradient norm differs from that of earlier epochs.

Accordion (Agarwal et al., MLSys 2021) compresses lightly when the norm of the gradient accumulated
over an epoch has changed by eta = 0.5 or more since 10 epochs ago, or when the learning rate is
about to fall. When fewer epochs have passed, this detector compares with the oldest (our choice).
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.training.detector import Detector, Observation, norm_changed
from testbed.training.phases.base import DetectorParameters


class Parameters(DetectorParameters):
    """`eta` as in Accordion, `epochs_back` the distance of the comparison."""

    eta: float = Field(default=0.5, gt=0, description="relative change that is critical")
    epochs_back: int = Field(default=10, ge=1, description="compares with the epoch so many before")

    def create(self, rounds_per_epoch: int) -> Detector:
        return Accordion(self, rounds_per_epoch)


class Accordion(Detector):
    """Decides at each epoch's end; the first epoch is critical, as in the published code."""

    remembered = ("_norms", "_sum")

    def __init__(self, options: Parameters, rounds_per_epoch: int) -> None:
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
