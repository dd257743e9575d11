"""A phase detector: critical at first, and whenever the averaged gradient is large again.

`phases: {detector: ./own_detector.py, share: 0.7}`
"""

import numpy as np
from pydantic import Field

from testbed.training.phases import Detector, DetectorParameters, Observation


class Parameters(DetectorParameters):
    """It holds the keys that YAML may have, beside `detector`."""

    share: float = Field(default=0.5, gt=0, description="of the largest norm seen so far")

    def create(self, rounds_per_epoch: int) -> Detector:
        return LargeGradient(self.share)


class LargeGradient(Detector):
    """Compares each round's norm with the largest one."""

    remembered = ("_largest",)  # a checkpoint keeps these attributes

    def __init__(self, share: float) -> None:
        self._share = share
        self._largest = 0.0

    def observe(self, seen: Observation) -> None:
        norm = float(np.linalg.norm(seen.gradient))
        self._largest = max(self._largest, norm)
        self.critical = norm >= self._share * self._largest
