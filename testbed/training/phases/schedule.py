"""`schedule`: critical in given rounds, to replay a published log or to control a study."""

from typing import Literal

from pydantic import Field, field_validator

from testbed.training.phases.base import Detector, DetectorParameters, Observation


class Parameters(DetectorParameters):
    """`critical_rounds` lists `[first, last]` pairs, both inclusive, in rising order."""

    detector: Literal["schedule"]
    critical_rounds: list[tuple[int, int]] = Field(
        min_length=1, description="`[first, last]` pairs of rounds, both inclusive, rising"
    )

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
        self.critical = spans[0][0] == 0

    def observe(self, seen: Observation) -> None:
        self.critical = any(first <= seen.round_number <= last for first, last in self._spans)
