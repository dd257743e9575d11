"""One direction of a link, and what acts on it: `delay`, `queue`, `link-down` and `burst`."""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from controllers.impairments.base import (
    Effect,
    Impairment,
    ImpairmentParameters,
    LabAccess,
    RateBps,
)
from testbed.lab import paths
from testbed.lab.kernel.packet_filter import ArrivalCounter
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES, OWN_ETHERTYPE
from testbed.lab.link_control import LinkControl
from testbed.lab.network import Port
from testbed.lab.paced_frames import PacedFrames


@dataclass(frozen=True, kw_only=True)
class Direction:
    """The direction of a link from `sender` to `receiver`, and the sender's shaping."""

    link: str
    sender: Port
    receiver: Port
    rate_bps: int
    queue_bytes: int


def direction(network: Mapping[str, Any], parameters: ImpairmentParameters) -> Direction:
    """Find the direction that an impairment acts on: its `link`, or a switch towards its `host`."""
    for link, sender, receiver in paths.directions(network):
        ends = sender["node"], receiver["node"]
        if ends == parameters.link or (parameters.link is None and ends[1] == parameters.host):
            return Direction(
                link=link["name"],
                sender=Port(**sender),
                receiver=Port(**receiver),
                rate_bps=link["rate_bps"],
                queue_bytes=link["queue_bytes"],
            )
    raise ValueError(f"{parameters.label}: there is no link to {parameters.target}")


class TemporarySettings:
    """Sets values of one direction, and brings back others' values at the end.

    Attributes:
        way: the direction's sender and receiver.
        sent, dropped: the packets of the direction's queue, from the first setting until all was
            undone.
    """

    def __init__(self, links: LinkControl, sender: str, receiver: str) -> None:
        self.sent = self.dropped = 0
        self._before: tuple[int, int] | None = None
        self._links = links
        self.way = (sender, receiver)
        self._others: dict[str, float] = {}  # what anyone else set last
        self._own: dict[str, float] = {}

    def set(self, settings: Mapping[str, float]) -> None:
        """Change some settings, by the names that `LinkControl.change` takes."""
        self._note(settings)
        self._links.change(*self.way, settings)
        now = self._links.now(*self.way)
        self._own |= {key: now[key] for key in settings}
        if self._before is None:
            self._before = self._links.offered(*self.way)

    def undo(self) -> None:
        """Bring back what others set last, of all that was set here."""
        self._note(self._own)
        self._links.change(*self.way, self._others)
        self._others, self._own = {}, {}
        if self._before is not None:
            sent, dropped = self._links.offered(*self.way)
            self.sent, self.dropped = sent - self._before[0], dropped - self._before[1]
            self._before = None

    def _note(self, keys: Mapping[str, float]) -> None:
        now = self._links.now(*self.way)
        for key in keys:
            if key not in self._own or now[key] != self._own[key]:
                self._others[key] = now[key]


class NewSettings(ImpairmentParameters):
    """Parameters of which some are new settings of one direction."""

    keys: ClassVar[tuple[str, ...]] = ()

    @property
    def settings(self) -> dict[str, float]:
        return self.model_dump(include={*self.keys}, exclude_none=True)

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.keys and not self.settings:
            raise ValueError(f"changes nothing; give {', '.join(self.keys)} or both")
        return self


ParametersT = TypeVar("ParametersT", bound=NewSettings)


class ChangedDirection(Impairment[ParametersT]):
    """Sets `settings` of one direction while it is in force, then those from before."""

    def __init__(self, parameters: ParametersT, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        at = direction(lab.network, parameters)
        self._link = TemporarySettings(lab.links, at.sender.node, at.receiver.node)
        self._new = parameters.settings

    def begin(self) -> None:
        self._link.set(self._new)

    def end(self) -> None:
        self._link.undo()

    def effect(self) -> Effect:
        sent, dropped = self._link.sent, self._link.dropped
        return Effect(met=sent + dropped, dropped=dropped, details=self._new)


def too_much_jitter(delay_s: float, jitter_s: float, keys: Collection[str]) -> str:
    """Say which of the `keys` is wrong where a jitter exceeds its delay; empty: it fits."""
    if jitter_s <= delay_s:
        return ""
    if "jitter_s" in keys:
        return f"jitter_s: {jitter_s:g}; valid: up to {delay_s:g}, the delay_s"
    return f"delay_s: {delay_s:g}; valid: from {jitter_s:g}, the jitter_s"


class DelayParameters(NewSettings):
    """Changes delay and jitter of one direction of a link, in netem or in the lab's relay."""

    keys = ("delay_s", "jitter_s")
    delay_s: float | None = Field(
        default=None, ge=0, le=10, description="the new delay of the direction"
    )
    jitter_s: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="how far a packet's delay may lie from it, either way; at most the delay",
    )

    @property
    def changes_middle(self) -> Collection[str]:
        return self.settings

    def longest_wait_s(self, link: Mapping[str, Any]) -> float:
        now = {**link, **self.settings}
        return float(now["delay_s"] + now["jitter_s"])

    def check_link(self, link: Mapping[str, Any]) -> None:
        now = {**link, **self.settings}
        if words := too_much_jitter(now["delay_s"], now["jitter_s"], self.settings):
            raise ValueError(f"{words} (what an entry does not set is the link's)")


class Delay(ChangedDirection[DelayParameters]):
    """Changes the middle of the link, and not its queue."""

    changes_rates = "no"

    def effect(self) -> Effect:
        return replace(super().effect(), dropped=None)


class QueueParameters(NewSettings):
    """Changes one direction's rate or queue limit; waiting packets stay."""

    keys = ("rate_bps", "queue_bytes")
    rate_bps: RateBps | None = Field(default=None, description="the new rate")
    queue_bytes: int | None = Field(
        default=None, ge=2 * ETHERNET_FRAME_BYTES, le=64 << 20, description="the new queue limit"
    )

    @property
    def sets_rate(self) -> Literal["one way", "both ways", ""]:
        return "one way" if self.rate_bps else ""

    def check_link(self, link: Mapping[str, Any]) -> None:
        if self.rate_bps is not None and self.rate_bps > link["rate_bps"]:
            raise ValueError(
                f"rate_bps: {self.rate_bps}; valid: up to {link['rate_bps']}, the link's own, at "
                "which it is calibrated"
            )


class Queue(ChangedDirection[QueueParameters]):
    changes_rates = "target"


class LinkDownParameters(ImpairmentParameters):
    """Takes a link's switch ports down and up again; what waits in queues is lost."""

    both_ways: ClassVar[bool] = True


class LinkDown(Impairment[LinkDownParameters]):
    """Takes a link's port down; both ports where the other end would not notice."""

    counts_as = "link-down"
    changes_rates = "target"

    def __init__(self, parameters: LinkDownParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        at = direction(lab.network, parameters)
        switches, ends = lab.network["switches"], (at.sender, at.receiver)
        self._ports = [(end.node, end.number) for end in ends if end.node in switches]
        link = next(link for link in lab.network["links"] if link["name"] == at.link)
        if not link["middle"]:
            # The two ends of one cable: the other port loses its carrier at once.
            del self._ports[1:]
        for switch, port in self._ports:  # a controller that was killed may have left it down
            lab.set_port(switch, port, up=True)

    def begin(self) -> None:
        self._set(up=False)

    def end(self) -> None:
        self._set(up=True)

    def effect(self) -> Effect:
        return Effect(details={"ports": ", ".join(f"{node}:{port}" for node, port in self._ports)})

    def _set(self, *, up: bool) -> None:
        for switch, port in self._ports:
            self.lab.set_port(switch, port, up=up)
        for switch in {switch for switch, _ in self._ports}:
            self.lab.barrier(switch)


# Bursts

_SOURCE_MACS = 0x0200_BB00_0000
# No host's address: a switch that receives such a frame has no rule for it and drops it.
_NOBODY_MAC = "02:00:00:00:bb:02"
# Short, since the next burst waits for it; frames that come later count as lost.
_DRAIN_SLACK_S = 0.005
# Paced frames are queued this long in advance, because a busy machine may delay the controller.
_AHEAD_S = 0.05
# Frames per step, about 2 ms of work, so that the controller answers others in between.
_MOST_AT_ONCE = 512


class BurstParameters(ImpairmentParameters):
    """Frames into a switch port's queue, paced by the kernel, at `rate_factor` times its rate."""

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
    counts_as = "burst"
    changes_rates = "no"
    ticks = True
    _frames_sent = 0
    _frames_due = 0

    def __init__(self, parameters: BurstParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._at = at = direction(lab.network, parameters)
        host = lab.network["hosts"].get(at.receiver.node, {"mac": _NOBODY_MAC})
        # Other bursts and the calibration send frames of this type through the same ports.
        source = (_SOURCE_MACS + lab.unique()).to_bytes(6).hex(":")
        addresses = bytes.fromhex((host["mac"] + source).replace(":", ""))
        frame = addresses + struct.pack("!H", OWN_ETHERTYPE)
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
            ends_here=at.receiver.pid is None and lab.network["datapath"] == "userspace",
        )

    def begin(self) -> None:
        self._began_s = time.monotonic()
        self._frames_sent = self._paced.send(self._paced.copies)

    def tick(self, elapsed_s: float) -> None:
        until_s = min(elapsed_s + _AHEAD_S, self.parameters.duration_s)
        due = int(until_s * self._frames_per_s) - self._frames_sent
        self._frames_sent += self._paced.send(min(due, _MOST_AT_ONCE))

    def end(self) -> None:
        """Note how many frames were due: all have been queued, unless ticks were late."""
        lasted_s = min(time.monotonic() - self._began_s, self.parameters.duration_s)
        clumps = int(lasted_s * self._frames_per_s) // self._paced.copies
        self._frames_due = clumps * self._paced.copies

    def effect(self) -> Effect:
        drain_s = self._at.queue_bytes * 8 / self._at.rate_bps
        self.lab.sleep(drain_s + _DRAIN_SLACK_S)
        return Effect(
            met=self._frames_sent,
            dropped=self._frames_sent - self._arrived.take(),
            frames_sent=self._frames_sent,
            details={"frames_due": self._frames_due},
        )
