"""`link-down`: takes a link's switch ports down and up again; what waits in queues is lost."""

from __future__ import annotations

from typing import ClassVar

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.link_directions import direction


class LinkDownParameters(ImpairmentParameters):
    """Of a `host` its only link; a `link` may be named in either order."""

    both_ways: ClassVar[bool] = True


class LinkDown(Impairment[LinkDownParameters]):
    """Takes a link's port down; both ports where the other end would not notice."""

    counts_as = "link-down"
    changes_rates = "target"
    openflow_only = True

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
