"""Phase detectors: when is training critical, so that little loss is tolerated?

`base` says what one is. To add one: a file here and a line in `DETECTORS`; or a file of your own,
`phases: {detector: ./mine.py}`. Imports numpy, pydantic and `testbed.shared`.
"""

from __future__ import annotations

from typing import Annotated

from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry
from testbed.training.detector import Detector, Observation
from testbed.training.phases import schedule
from testbed.training.phases.base import DetectorParameters, observe
from testbed.training.phases.gradient_norm import GradientNormPhases

DETECTORS: Registry[DetectorParameters] = Registry(
    "detector",
    {
        "gradient-norm": GradientNormPhases,
        "always-critical": schedule.AlwaysCritical,
        "never-critical": schedule.NeverCritical,
        "schedule": schedule.Parameters,
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
