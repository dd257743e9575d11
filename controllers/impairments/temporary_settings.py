"""Settings of a direction that hold for a while; the last value set by hand is never lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.link_directions import Direction, direction
from testbed.lab.link_control import LinkControl

ParametersT = TypeVar("ParametersT", bound=ImpairmentParameters)


class TemporarySettings:
    """Sets values of one direction, and brings back others' values at the end."""

    def __init__(self, links: LinkControl, sender: str, receiver: str) -> None:
        self._links = links
        self._way = (sender, receiver)
        self._others: dict[str, float] = {}  # what anyone else set last
        self._own: dict[str, float] = {}

    def set(self, settings: Mapping[str, float]) -> None:
        """Change some settings, by the names that `LinkControl.change` takes."""
        self._note(settings)
        self._links.change(*self._way, settings)
        now = self._links.now(*self._way)
        self._own |= {key: now[key] for key in settings}

    def undo(self) -> None:
        """Bring back what others set last, of all that was set here."""
        self._note(self._own)
        self._links.change(*self._way, self._others)
        self._others, self._own = {}, {}

    def _note(self, keys: Mapping[str, float]) -> None:
        now = self._links.now(*self._way)
        for key in keys:
            if key not in self._own or now[key] != self._own[key]:
                self._others[key] = now[key]


class ChangedDirection(Impairment[ParametersT]):
    """Sets new values of one direction while it is in force, and at the end those from before."""

    def __init__(self, parameters: ParametersT, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        at = direction(lab.network, parameters)
        self._ends = (at.sender.node, at.receiver.node)
        self._link = TemporarySettings(lab.links, *self._ends)
        self._new = self.new_settings(at)
        self._before = self._sent, self._dropped = 0, 0

    def new_settings(self, at: Direction) -> dict[str, Any]:
        """The new values, by the names that `LinkControl.change` takes."""
        raise NotImplementedError

    def begin(self) -> None:
        self._link.set(self._new)
        self._before = self.lab.links.offered(*self._ends)

    def end(self) -> None:
        self._link.undo()
        sent, dropped = self.lab.links.offered(*self._ends)
        self._sent, self._dropped = sent - self._before[0], dropped - self._before[1]

    def effect(self) -> Effect:
        """The packets that came to the queue meanwhile, and those that it dropped."""
        return Effect(met=self._sent + self._dropped, dropped=self._dropped, details=self._new)
