"""Phase detectors: when is training critical, so that little loss is tolerated?

`base` has the interface. To add one: a class in `detectors` and a line in `DETECTORS`; or a file of
your own, `phases: {detector: ./mine.py}`. Imports numpy, pydantic and `testbed.shared`.
"""

from __future__ import annotations

from typing import Annotated

from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry
from testbed.training.detector import Detector, Observation
from testbed.training.phases.base import DetectorParameters, observe
from testbed.training.phases.detectors import (
    AlwaysCritical,
    GradientNormPhases,
    NeverCritical,
    SchedulePhases,
)

DETECTORS: Registry[DetectorParameters] = Registry(
    "detector",
    {
        "gradient-norm": GradientNormPhases,
        "always-critical": AlwaysCritical,
        "never-critical": NeverCritical,
        "schedule": SchedulePhases,
    },
    own="Parameters",
    base=DetectorParameters,
)
AnyPhases = Annotated[
    DetectorParameters,
    OneOf(DETECTORS, key="detector", base=DetectorParameters, default="gradient-norm"),
]
DEFAULT = GradientNormPhases()

__all__ = [
    "DEFAULT",
    "DETECTORS",
    "AnyPhases",
    "Detector",
    "DetectorParameters",
    "Observation",
    "observe",
]
