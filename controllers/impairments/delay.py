"""`delay`: changes delay and jitter of one direction of a link, in netem or in the lab's relay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator

from controllers.impairments.base import Effect, ImpairmentParameters
from controllers.impairments.link_directions import Direction
from controllers.impairments.temporary_settings import ChangedDirection


class DelayParameters(ImpairmentParameters):
    """New values in place of the configured ones; what is not given stays."""

    delay_s: float | None = Field(
        default=None, ge=0, le=10, allow_inf_nan=False, description="the new delay of the direction"
    )
    jitter_s: float | None = Field(
        default=None,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="how far a packet's delay may lie from it, either way; at most the delay",
    )

    @property
    def settings(self) -> dict[str, float]:
        """The new values by name."""
        given = {"delay_s": self.delay_s, "jitter_s": self.jitter_s}
        return {key: value for key, value in given.items() if value is not None}

    @property
    def changes_middle(self) -> Collection[str]:
        return self.settings

    def longest_wait_s(self, link: Mapping[str, Any]) -> float:
        now = {**link, **self.settings}
        return float(now["delay_s"] + now["jitter_s"])

    def check_link(self, link: Mapping[str, Any]) -> None:
        now = {**link, **self.settings}
        if now["jitter_s"] <= now["delay_s"]:
            return
        if self.jitter_s is not None:
            raise ValueError(
                f"jitter_s: {self.jitter_s:g}; valid: up to {now['delay_s']:g}, the delay_s of the "
                f"{'link' if self.delay_s is None else 'entry'}"
            )
        raise ValueError(
            f"delay_s: {self.delay_s:g}; valid: {now['jitter_s']:g} or more, the link's jitter_s"
        )

    @model_validator(mode="after")
    def _changes_something(self) -> DelayParameters:
        if not self.settings:
            raise ValueError("changes nothing; give delay_s, jitter_s or both")
        return self


class Delay(ChangedDirection[DelayParameters]):
    """Sets the new values, and at the end those from before."""

    changes_rates = "no"

    def new_settings(self, at: Direction) -> dict[str, Any]:
        return self.parameters.settings

    def effect(self) -> Effect:
        """What came meanwhile. What the queue dropped was not for the delay."""
        return replace(super().effect(), dropped=None)
