"""Phases that do not follow the training: given rounds, all, or none."""

from typing import Any

from pydantic import Field, field_validator

from testbed.training.detector import Detector, Observation
from testbed.training.phases.base import DetectorParameters


class Parameters(DetectorParameters):
    """Critical in given rounds, the same for all arms."""

    critical_rounds: list[tuple[int, int]] = Field(
        description="`[first, last]` pairs of rounds, both inclusive, rising"
    )

    @field_validator("critical_rounds", mode="before")
    @classmethod
    def _are_pairs(cls, given: Any) -> Any:
        if isinstance(given, list) and not all(isinstance(each, list | tuple) for each in given):
            raise ValueError(f"{given}: must be [first, last] pairs of rounds, such as [[0, 9]]")
        return given

    @field_validator("critical_rounds")
    @classmethod
    def _rises(cls, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        last = -1
        for first, end in spans:
            if first <= last or end < first:
                raise ValueError("must be [first, last] pairs of rounds in rising order")
            last = end
        return spans

    def create(self, rounds_per_epoch: int) -> Detector:
        return Schedule(self.critical_rounds)


class Schedule(Detector):
    """Follows the list; its answer after round n holds from that round's broadcast on."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self._spans = spans
        self.critical = bool(spans) and spans[0][0] == 0

    def observe(self, seen: Observation) -> None:
        self.critical = any(first <= seen.round_number <= last for first, last in self._spans)


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
