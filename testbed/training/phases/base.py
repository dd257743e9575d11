"""The sections of phase detectors, which decide after each round whether training is critical.

Write a `Parameters` section (what YAML may say) whose `create` makes a `Detector`. In this package
it also needs a line in `DETECTORS`.
"""

import numpy as np

from testbed.shared import own_code
from testbed.shared.section import Section
from testbed.training.detector import Detector, Observation


def observe(detector: Detector, seen: Observation) -> bool:
    """Let a detector see a round; returns whether training is critical now. InputError."""
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
