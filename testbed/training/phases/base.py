"""The sections of phase detectors: their keys in YAML, and a `create` that makes a `Detector`."""

import numpy as np

from testbed.shared import own_code
from testbed.shared.problems import Section
from testbed.training.detector import Detector, Observation


def observe(detector: Detector, seen: Observation) -> bool:
    """Pass a round to a detector; returns whether training is critical now. InputError."""
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
