"""Learning-rate schedules by name: the factor of the learning rate in each round, without state.

To add one: a `Schedule` with a `_factor` method, and a line in `SCHEDULES`; or a file of your own,
`schedule: {kind: ./mine.py}`.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry
from testbed.shared.section import Section


@dataclass(frozen=True, kw_only=True)
class Position:
    """A point of the training: `round_number` of `rounds`, with `rounds_per_epoch` in an epoch."""

    round_number: int
    rounds: int
    rounds_per_epoch: int


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


class CosineRate(Schedule):
    """Half a cosine from 1 down to `final` in the last round."""

    kind: Literal["cosine"]
    final: float = Field(default=0.0, ge=0, lt=1, description="the last round's factor")

    def _factor(self, at: Position) -> float:
        span = max(1, at.rounds - 1 - self.warmup_rounds)
        share_done = min(1.0, (at.round_number - self.warmup_rounds) / span)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * share_done)) / 2


SCHEDULES: Registry[Schedule] = Registry(
    "learning-rate schedule",
    {"constant": ConstantRate, "cosine": CosineRate},
    base=Schedule,
)
AnySchedule = Annotated[Schedule, OneOf(SCHEDULES, key="kind", base=Schedule)]
