"""Asks detectors what they would have said of gradients with given norms, without a training."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from testbed.training.phases import AnyPhases, DetectorParameters, Observation, observe

_PHASES: TypeAdapter[DetectorParameters] = TypeAdapter(AnyPhases)


def replay(sections: Sequence[Mapping[str, Any]], norms: Sequence[float]) -> list[list[bool]]:
    """Show the same gradients to several new detectors, as the server does, round by round.

    Only the norms of the gradients are right, and there are no epochs: that is for detectors which
    read nothing but the norm, with a cadence in rounds.

    Args:
        sections: `phases` sections of an experiment; a detector is made of each.
        norms: L2 norm of the averaged gradient, one a round from round 0; NaN where it was not
            finite.

    Returns:
        What each detector says after each round.

    Raises:
        ValueError: a section is not valid.
    """
    detectors = [_PHASES.validate_python(dict(each)).create(1) for each in sections]
    said: list[list[bool]] = [[] for _ in detectors]
    for number, norm in enumerate(norms):
        seen = Observation.of_norm(number, norm)
        for detector, answers in zip(detectors, said, strict=True):
            answers.append(observe(detector, seen))
    return said
