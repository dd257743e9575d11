"""Phases that do not follow the training: given rounds, those of a finished run, all, or none."""

from typing import Any

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from testbed.training.detector import Detector, Observation
from testbed.training.phases.base import DetectorParameters

_ONE_OF_THEM = "needs `critical_rounds`, or `from` with the name of a finished run"


class Parameters(DetectorParameters):
    """Critical in given rounds, or in those of a finished run, the same for all arms.

    The rounds stand in `critical_rounds`, or are taken from the finished run that `from` names.
    Rounds that were taken are stored in the run's configuration. Where `critical_rounds` is given,
    `from` only says where they came from.
    """

    model_config = ConfigDict(
        populate_by_name=True,
        serialize_by_alias=True,
        json_schema_extra={"anyOf": [{"required": ["critical_rounds"]}, {"required": ["from"]}]},
    )

    critical_rounds: list[tuple[int, int]] | None = Field(
        default=None, description="`[first, last]` pairs of rounds, both inclusive, rising"
    )
    from_: str | None = Field(
        default=None,
        alias="from",
        description="a finished run: its name, `EXPERIMENT/RUN`, or its folder; or "
        "`EXPERIMENT/ARM`: of that arm's runs the one with the same seed and point of the sweep",
    )

    @field_validator("critical_rounds", mode="before")
    @classmethod
    def _are_pairs(cls, given: Any) -> Any:
        if isinstance(given, list) and not all(isinstance(each, list | tuple) for each in given):
            raise ValueError(f"{given}: must be [first, last] pairs of rounds, such as [[0, 9]]")
        return given

    @field_validator("critical_rounds")
    @classmethod
    def _rises(cls, spans: list[tuple[int, int]] | None) -> list[tuple[int, int]] | None:
        last = -1
        for first, end in spans or []:
            if first <= last or end < first:
                raise ValueError("must be [first, last] pairs of rounds in rising order")
            last = end
        return spans

    @model_validator(mode="after")
    def _has_rounds(self) -> "Parameters":
        if self.critical_rounds is None and self.from_ is None:
            raise ValueError(_ONE_OF_THEM)
        return self

    @model_serializer(mode="wrap")
    def _only_what_is_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}

    def create(self, rounds_per_epoch: int) -> Detector:
        if self.critical_rounds is None:
            raise ValueError(f"the critical rounds of {self.from_!r} have not been taken yet")
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
