"""`link-down`: a link's switch ports go down and come up again, and routing reacts.

Both directions are lost, whatever the target names, data and control alike, and so is what waits
in the queues. The controller hears of it from the switches and routes around the link, where there
is another way.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.link_directions import direction


class LinkDownParameters(ImpairmentParameters):
    """Of a `host` its only link; a `link` may be named in either order."""

    both_ways: ClassVar[bool] = True

    kind: Literal["link-down"]


class LinkDown(Impairment[LinkDownParameters]):
    """Takes the ports at both ends down where something in the middle hides one from the other."""

    openflow_only = True

    def __init__(self, parameters: LinkDownParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        at = direction(lab.network, parameters)
        self._ports = [(end.node, end.number) for end in (at.sender, at.receiver) if end.is_switch]
        link = next(each for each in lab.network["links"] if each.get("name") == at.link)
        if not link.get("middle") and at.receiver.interface:
            # Two ends of one cable: the other port loses its carrier with this one, at once.
            del self._ports[1:]

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
