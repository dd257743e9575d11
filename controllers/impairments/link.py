"""A direction of a link, and the kinds that change it: `delay` and `link-down`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from pydantic import Field, model_validator

from controllers.impairments.base import Effect, Impairment, LabAccess
from controllers.impairments.parameters import ImpairmentParameters
from testbed.lab import paths
from testbed.lab.link_control import LinkControl

ParametersT = TypeVar("ParametersT", bound=ImpairmentParameters)


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of a direction. `pid` is a process in its namespace; None: that of the switches."""

    node: str
    interface: str
    number: int
    pid: int | None
    is_switch: bool


@dataclass(frozen=True, kw_only=True)
class Direction:
    """The direction of a link from `sender` to `receiver`, and the sender's shaping."""

    link: str
    sender: End
    receiver: End
    rate_bps: int
    queue_bytes: int


def direction(network: Mapping[str, Any], parameters: ImpairmentParameters) -> Direction:
    """The direction that an impairment acts on: of its `link`, or from a switch to its `host`.

    ValueError: there is none, which a lab refuses before it begins.
    """

    def end(port: Mapping[str, Any]) -> End:
        return End(
            node=port["node"],
            interface=port.get("interface", ""),
            number=port["number"],
            pid=port.get("pid"),
            is_switch=port["node"] in network["switches"],
        )

    for link, sender, receiver in paths.directions(network):
        ends = sender["node"], receiver["node"]
        if ends == parameters.link or (parameters.link is None and ends[1] == parameters.host):
            return Direction(
                link=link["name"],
                sender=end(sender),
                receiver=end(receiver),
                rate_bps=link["rate_bps"],
                queue_bytes=link["queue_bytes"],
            )
    raise ValueError(f"{parameters.label}: there is no link to {parameters.target}")


class TemporarySettings:
    """Sets values of one direction, and brings back others' values at the end.

    Attributes:
        way: the direction's sender and receiver.
        sent, dropped: by the direction's queue, from the first setting until all was undone.
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


class ChangedDirection(Impairment[ParametersT]):
    """Sets new values of one direction while it is in force, and at the end those from before."""

    def __init__(self, parameters: ParametersT, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        at = direction(lab.network, parameters)
        self._link = TemporarySettings(lab.links, at.sender.node, at.receiver.node)
        self._new = self.new_settings(at)

    def new_settings(self, at: Direction) -> dict[str, Any]:
        """The new values, by the names that `LinkControl.change` takes."""
        raise NotImplementedError

    def begin(self) -> None:
        self._link.set(self._new)

    def end(self) -> None:
        self._link.undo()

    def effect(self) -> Effect:
        """The packets that came to the queue meanwhile, and those that it dropped."""
        sent, dropped = self._link.sent, self._link.dropped
        return Effect(met=sent + dropped, dropped=dropped, details=self._new)


class DelayParameters(ImpairmentParameters):
    """Changes delay and jitter of one direction of a link, in netem or in the lab's relay. What
    is not given stays.
    """

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
        delay_s, jitter_s = now["delay_s"], now["jitter_s"]
        if jitter_s > delay_s:
            words = f"jitter_s: {jitter_s:g}; valid: up to {delay_s:g}, the delay_s"
            if self.jitter_s is None:
                words = f"delay_s: {delay_s:g}; valid: from {jitter_s:g}, the jitter_s"
            raise ValueError(f"{words} (what an entry does not set is the link's)")

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


class LinkDownParameters(ImpairmentParameters):
    """Takes a link's switch ports down and up again; what waits in queues is lost. Of
    a `host` it is its only link; a `link` may be named in either order.
    """

    both_ways: ClassVar[bool] = True


class LinkDown(Impairment[LinkDownParameters]):
    """Takes a link's port down; both ports where the other end would not notice."""

    counts_as = "link-down"
    changes_rates = "target"

    def __init__(self, parameters: LinkDownParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        at = direction(lab.network, parameters)
        self._ports = [(end.node, end.number) for end in (at.sender, at.receiver) if end.is_switch]
        link = next(each for each in lab.network["links"] if each.get("name") == at.link)
        if not link.get("middle") and at.receiver.interface:
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
