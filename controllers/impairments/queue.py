"""What touches the queue of a switch port: `queue` changes it, `burst` fills it."""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from controllers.impairments.base import Effect, Impairment, LabAccess
from controllers.impairments.link import ChangedDirection, Direction, direction
from controllers.impairments.parameters import ImpairmentParameters, RateBps
from testbed.lab.kernel.packet_filter import ArrivalCounter
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES, OWN_ETHERTYPE
from testbed.lab.paced_frames import PacedFrames

_SOURCE_MACS = 0x0200_BB00_0000
# No host's address: a switch that receives such a frame has no rule for it and drops it.
_NOBODY_MAC = "02:00:00:00:bb:02"
# Short, since the next burst waits for it; frames that come later count as lost.
_DRAIN_SLACK_S = 0.005
# Paced frames are queued this long in advance, because a busy machine may delay the controller.
_AHEAD_S = 0.05
# Frames per step, about 2 ms of work, so that the controller answers others in between.
_MOST_AT_ONCE = 512


class QueueParameters(ImpairmentParameters):
    """One direction's rate, queue limit or both for a while; waiting packets stay. Give
    new values, or factors of the configured ones; what is not given stays.
    """

    rate_bps: RateBps | None = Field(default=None, description="the new rate")
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
        parameters, new = self.parameters, {}
        if parameters.rate_bps is not None or parameters.rate_factor is not None:
            rate = parameters.rate_bps or round(at.rate_bps * (parameters.rate_factor or 1))
            new["rate_bps"] = max(10_000, rate)
        if parameters.queue_bytes is not None or parameters.queue_factor is not None:
            limit = parameters.queue_bytes or round(at.queue_bytes * (parameters.queue_factor or 1))
            new["queue_bytes"] = max(2 * ETHERNET_FRAME_BYTES, limit)
        return new


class BurstParameters(ImpairmentParameters):
    """Background frames into a switch port's queue, paced by the kernel: at `rate_factor` times
    the link's rate for `duration_s`.
    """

    acts_at_sending_switch: ClassVar[bool] = True
    exclusive: ClassVar[bool] = False  # two bursts add up

    rate_factor: float = Field(
        default=3.0, ge=0.01, le=100, description="the burst's rate in multiples of the link's"
    )
    duration_s: float = Field(default=0.05, gt=0, le=60, description="how long it lasts")
    frame_bytes: int = Field(
        default=ETHERNET_FRAME_BYTES,
        ge=60,
        le=ETHERNET_FRAME_BYTES,
        description="size of each of its Ethernet frames",
    )


class Burst(Impairment[BurstParameters]):
    """Keeps an egress queue overfull for a while."""

    counts_as = "burst"
    changes_rates = "no"
    ticks = True
    _frames_sent = 0

    def __init__(self, parameters: BurstParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._at = at = direction(lab.network, parameters)
        host = lab.network["hosts"].get(at.receiver.node)
        # Other bursts and the calibration send frames of this type through the same ports.
        source = (_SOURCE_MACS + lab.unique()).to_bytes(6).hex(":")
        addresses = (host["mac"] if host else _NOBODY_MAC) + source
        frame = bytes.fromhex(addresses.replace(":", "")) + struct.pack("!H", OWN_ETHERTYPE)
        rate_bps = at.rate_bps * parameters.rate_factor
        self._frames_per_s = rate_bps / (8 * parameters.frame_bytes)
        self._paced = PacedFrames(
            at.sender.interface,
            frame.ljust(parameters.frame_bytes, b"\0"),
            rate_bps=rate_bps,
            link_rate_bps=at.rate_bps,
        )
        # The queue's counter does not tell whose frames it refused. So arrivals are counted.
        self._arrived = ArrivalCounter(
            at.receiver.pid,
            at.receiver.interface,
            f"ether type {OWN_ETHERTYPE:#06x} ether saddr {source}",
            ends_here=at.receiver.is_switch and lab.network.get("datapath") == "userspace",
        )

    def begin(self) -> None:
        self._frames_sent = self._paced.send(self._paced.copies)

    def tick(self, elapsed_s: float) -> None:
        until_s = min(elapsed_s + _AHEAD_S, self.parameters.duration_s)
        due = int(until_s * self._frames_per_s) - self._frames_sent
        self._frames_sent += self._paced.send(min(due, _MOST_AT_ONCE))

    def end(self) -> None:
        """Do nothing: all has been queued."""

    def effect(self) -> Effect:
        drain_s = self._at.queue_bytes * 8 / self._at.rate_bps
        self.lab.sleep(drain_s + _DRAIN_SLACK_S)
        return Effect(
            met=self._frames_sent,
            dropped=self._frames_sent - self._arrived.take(),
            frames_sent=self._frames_sent,
        )
