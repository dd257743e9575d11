"""`queue`: one direction's rate, queue limit or both for a while; waiting packets stay."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from controllers.impairments.base import ImpairmentParameters
from controllers.impairments.link_directions import Direction
from controllers.impairments.temporary_settings import ChangedDirection
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES


class QueueParameters(ImpairmentParameters):
    """New values, or factors of the configured ones; what is not given stays."""

    rate_bps: int | None = Field(
        default=None, ge=10_000, le=100_000_000_000, description="the new rate"
    )
    rate_factor: float | None = Field(
        default=None, gt=0, le=100, description="the new rate in multiples of the configured one"
    )
    queue_bytes: int | None = Field(
        default=None, ge=2 * ETHERNET_FRAME_BYTES, le=64 << 20, description="the new queue limit"
    )
    queue_factor: float | None = Field(
        default=None, gt=0, le=100, description="the new limit in multiples of the configured one"
    )

    @property
    def sets_rate(self) -> Literal["one way", "both ways", ""]:
        return "one way" if self.rate_bps or self.rate_factor else ""

    @model_validator(mode="after")
    def _changes_something(self) -> QueueParameters:
        pairs = (("rate_bps", "rate_factor"), ("queue_bytes", "queue_factor"))
        given = [[key for key in pair if getattr(self, key) is not None] for pair in pairs]
        for pair in given:
            if len(pair) == 2:
                raise ValueError(f"{pair[0]}: excludes {pair[1]}")
        if not any(given):
            keys = ", ".join(key for pair in pairs for key in pair)
            raise ValueError(f"changes nothing; give at least one of {keys}")
        return self


class Queue(ChangedDirection[QueueParameters]):
    """Sets the new values, and at the end those from before."""

    changes_rates = "target"

    def new_settings(self, at: Direction) -> dict[str, Any]:
        wanted, new = self.parameters, {}
        if wanted.rate_bps is not None or wanted.rate_factor is not None:
            rate = wanted.rate_bps or round(at.rate_bps * (wanted.rate_factor or 1))
            new["rate_bps"] = max(10_000, rate)
        if wanted.queue_bytes is not None or wanted.queue_factor is not None:
            limit = wanted.queue_bytes or round(at.queue_bytes * (wanted.queue_factor or 1))
            new["queue_bytes"] = max(2 * ETHERNET_FRAME_BYTES, limit)
        return new
