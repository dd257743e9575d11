"""What impairments sent and dropped on purpose, by their own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from testbed.lab.network import LabInfo, LinkEnds, Port


class ImpairmentRecords:
    """The records of a run's impairments, by where they acted.

    Args:
        network: the lab.
        events: of events/impairments.jsonl.

    Attributes:
        went_down: the links that impairments took down.
    """

    def __init__(self, network: LabInfo, events: Sequence[Mapping[str, Any]]) -> None:
        self._network = network
        self._ended = [each for each in events if each.get("action") == "end"]
        self.went_down = {
            link.name
            for each in events
            if each.get("counts_as") == "link-down"
            for link in network.links
            if _hits(each, link)
        }

    def burst_frames(self, port: Port, what: Literal["frames_sent", "dropped"]) -> int:
        """Frames that bursts sent to a switch port by PacketOut, or that its queue refused."""
        return sum(
            int(each.get(what) or 0)
            for each in self._ended
            if each.get("counts_as") == "burst" and self._target(each) == (port.node, port.number)
        )

    def lost(self, sender: Port, receiver: Port) -> int:
        """Packets that losses dropped in a direction."""
        target = f"{sender.node}->{receiver.node}"
        return sum(
            int(each.get("dropped") or 0)
            for each in self._ended
            if each.get("counts_as") == "loss" and each.get("target") == target
        )

    def dropped_in_switch(self, kind: str, switch: str) -> int | None:
        """Packets that impairments of a kind dropped in a switch; None: there was no impairment."""
        found = [
            int(each.get("dropped") or 0)
            for each in self._ended
            if each.get("counts_as") == kind
            and ((each.get("details") or {}).get("switch") or self._target(each)[0]) == switch
        ]
        return sum(found) if found else None

    def _target(self, event: Mapping[str, Any]) -> tuple[str, int]:
        """Switch and port of the direction that an impairment hit."""
        target = str(event.get("target") or event.get("host"))
        first, arrow, second = target.partition("->")
        if not arrow:
            host = self._network.hosts[target]
            return host.switch, host.switch_port
        for link in self._network.links:
            for end, other in ((link.first, link.second), (link.second, link.first)):
                if (end.node, other.node) == (first, second):
                    return end.node, end.number
        return "", 0


def _hits(event: Mapping[str, Any], link: LinkEnds) -> bool:
    """Whether an impairment acts on a link, in either direction."""
    first, arrow, second = str(event.get("target") or event.get("host")).partition("->")
    ends = {link.first.node, link.second.node}
    return ends == {first, second} if arrow else first in ends
