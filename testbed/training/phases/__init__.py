"""When is training critical, so that little loss is tolerated? `base` says what a detector is."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from testbed.training.phases import accordion, accuracy_gain, constant, gradient_norm, schedule
from testbed.training.phases.base import Detector, DetectorParameters, Observation


def _with_detector(section: Any) -> Any:
    if isinstance(section, dict) and "detector" not in section:
        return {"detector": "gradient-norm", **section}
    return section


AnyPhases = Annotated[
    Annotated[
        gradient_norm.Parameters
        | accordion.Parameters
        | accuracy_gain.Parameters
        | constant.Parameters
        | schedule.Parameters,
        Field(discriminator="detector"),
    ],
    BeforeValidator(_with_detector),
]
DEFAULT = gradient_norm.Parameters()

__all__ = ["DEFAULT", "AnyPhases", "Detector", "DetectorParameters", "Observation"]
