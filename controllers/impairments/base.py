"""What an impairment is: parameters from YAML, a beginning, an end, and a measured effect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from testbed.lab.network import HostInfo

Leg = Literal["gather", "broadcast"]


class ImpairmentParameters(BaseModel):
    """Common keys: the victim, and the legs of the rounds during which it suffers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    name: str = ""
    host: str = Field(default="server", description="the victim: a host of the topology")
    leg: Literal["gather", "broadcast", "both"] = "gather"
    rounds: list[int] = Field(min_length=1, description="rounds that it hits, from 0")

    @field_validator("rounds")
    @classmethod
    def _rounds_are_distinct_and_not_negative(cls, rounds: list[int]) -> list[int]:
        if any(each < 0 for each in rounds) or len(set(rounds)) != len(rounds):
            raise ValueError("must be distinct round numbers, 0 or more")
        return sorted(rounds)

    @property
    def label(self) -> str:
        """The name in logs and figures."""
        return self.name or f"{self.kind}-{self.host}"

    def hits(self, round_number: int, leg: str) -> bool:
        """Whether it is active during this leg of this round."""
        return round_number in self.rounds and self.leg in (leg, "both")


ParametersT = TypeVar("ParametersT", bound=ImpairmentParameters)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What it did; None where it is not its business.

    `dropped` counts packets that it dropped or, of a burst, its own frames that found the queue
    full. `frames_sent` counts the frames that it added to the network.
    """

    dropped: int | None = None
    frames_sent: int | None = None


class Switches(Protocol):
    """What an impairment may ask of the controller."""

    def packet_out(self, switch: str, port: int, frame: bytes, copies: int) -> None:
        """Emit `frame` `copies` times at a port, in one OpenFlow message."""

    def barrier(self, switch: str) -> None:
        """Return when the switch has processed everything sent before."""

    def sleep(self, duration_s: float) -> None:
        """Let the controller do other work meanwhile."""


class Impairment(ABC, Generic[ParametersT]):
    """One running impairment. The application calls `begin` and `end` and logs both.

    `begin` returns once the impairment is in force (its acknowledged time is taken then).
    """

    def __init__(self, parameters: ParametersT, victim: HostInfo, switches: Switches) -> None:
        self.parameters = parameters
        self.victim = victim
        self.switches = switches

    ends_with_leg: ClassVar[bool] = True  # False: it lasts `duration_s`, whatever the round does

    @abstractmethod
    def duration_s(self) -> float:
        """The longest time that it lasts."""

    @abstractmethod
    def begin(self) -> None:
        """Put it in force."""

    def tick(self, elapsed_s: float) -> None:
        """Called about every millisecond while it is in force."""

    @abstractmethod
    def end(self) -> None:
        """Take it away; it is gone when this returns."""

    def effect(self) -> Effect:
        """What it did, measured after its end."""
        return Effect()
