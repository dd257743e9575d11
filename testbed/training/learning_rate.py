"""Learning-rate schedules by name: the factor of the learning rate in each round, without state.

To add one: a `Schedule` with a `_factor` method, and a line in `SCHEDULES`; or a file of your own,
`schedule: {kind: ./mine.py}`.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry
from testbed.shared.section import Section


@dataclass(frozen=True, kw_only=True)
class Position:
    """A point of the training: `round_number` of `rounds`, with `rounds_per_epoch` in an epoch."""

    round_number: int
    rounds: int
    rounds_per_epoch: int

    @property
    def epoch(self) -> int:
        """The epoch that this round belongs to, from 0."""
        return self.round_number // self.rounds_per_epoch


class Schedule(Section):
    """The common part of all schedules."""

    kind: str
    warmup_rounds: int = Field(default=0, ge=0, description="linear rise from 0 before all else")

    def factor(self, at: Position) -> float:
        if at.round_number < self.warmup_rounds:
            return (at.round_number + 1) / (self.warmup_rounds + 1)
        return self._factor(at)

    def _factor(self, at: Position) -> float:
        raise NotImplementedError


class ConstantRate(Schedule):
    """The same rate in all rounds."""

    kind: Literal["constant"] = "constant"

    def _factor(self, at: Position) -> float:
        return 1.0


class StepRate(Schedule):
    """Multiplied with `factor_per_step` at each of the given epochs."""

    kind: Literal["step"]
    at_epochs: list[int] = Field(min_length=1, description="epochs, from 1, in rising order")
    factor_per_step: float = Field(
        default=0.1, gt=0, lt=1, description="multiplied with, at each of them"
    )

    @field_validator("at_epochs")
    @classmethod
    def _rises(cls, epochs: list[int]) -> list[int]:
        if sorted(set(epochs)) != epochs or epochs[0] < 1:
            raise ValueError("must be epochs of 1 or more in rising order")
        return epochs

    def _factor(self, at: Position) -> float:
        return float(self.factor_per_step ** sum(at.epoch >= epoch for epoch in self.at_epochs))


class _Falling(Schedule):
    """From 1 down to `final` in the last round."""

    final: float = Field(default=0.0, ge=0, lt=1, description="the last round's factor")

    def _share_done(self, at: Position) -> float:
        span = max(1, at.rounds - 1 - self.warmup_rounds)
        return min(1.0, (at.round_number - self.warmup_rounds) / span)


class CosineRate(_Falling):
    """Half a cosine from 1 down to `final` in the last round."""

    kind: Literal["cosine"]

    def _factor(self, at: Position) -> float:
        cosine = math.cos(math.pi * self._share_done(at))
        return self.final + (1 - self.final) * (1 + cosine) / 2


class LinearRate(_Falling):
    """A straight line from 1 down to `final` in the last round."""

    kind: Literal["linear"]

    def _factor(self, at: Position) -> float:
        return 1 - (1 - self.final) * self._share_done(at)


SCHEDULES: Registry[Schedule] = Registry(
    "learning-rate schedule",
    {"constant": ConstantRate, "step": StepRate, "cosine": CosineRate, "linear": LinearRate},
    base=Schedule,
)
AnySchedule = Annotated[Schedule, OneOf(SCHEDULES, key="kind", base=Schedule)]
