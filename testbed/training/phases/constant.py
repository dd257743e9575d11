"""`always-critical` and `never-critical`: the two extremes with which detectors are compared."""

from typing import Literal

from testbed.training.phases.base import Detector, DetectorParameters, Observation


class Parameters(DetectorParameters):
    """No options."""

    detector: Literal["always-critical", "never-critical"]

    def create(self, rounds_per_epoch: int) -> Detector:
        return Constant(critical=self.detector == "always-critical")


class Constant(Detector):
    """Never changes its answer."""

    def __init__(self, *, critical: bool) -> None:
        self.critical = critical

    def observe(self, seen: Observation) -> None:
        pass
