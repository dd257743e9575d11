"""`always-critical` and `never-critical`: the two extremes with which detectors are compared."""

from testbed.training.phases.base import Detector, DetectorParameters, Observation


class AlwaysCritical(DetectorParameters):
    """Every round is critical. No options."""

    def create(self, rounds_per_epoch: int) -> Detector:
        return Constant(critical=True)


class NeverCritical(DetectorParameters):
    """No round is critical. No options."""

    def create(self, rounds_per_epoch: int) -> Detector:
        return Constant(critical=False)


class Constant(Detector):
    """Never changes its answer."""

    def __init__(self, *, critical: bool) -> None:
        self.critical = critical

    def observe(self, seen: Observation) -> None:
        pass
