"""What impairments may use in virtual time: `LabAccess`, as far as a simulated network has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.lab.link_control import LinkControl
from testbed.lab.network import HostInfo, hosts_from_json
from testbed.run.simulated_network import SimulatedNetwork
from testbed.simulate.engine import Simulation


class SimulatedLinks(LinkControl):
    """The lab's, whose changes are made in virtual time."""

    def __init__(self, simulation: Simulation, network: SimulatedNetwork) -> None:
        super().__init__(network.info)
        self._simulation = simulation
        self._network = network

    def offered(self, first: str, second: str) -> tuple[int, int]:
        self._require(first, second)
        link = self._network.links[first, second]
        link.serve()
        return link.sent - link.dropped, link.dropped

    def change_rate(self, first: str, second: str, rate_bps: int) -> float:
        self._require(first, second)
        self._network.links[first, second].set_rate(rate_bps)
        self._shapes[first, second] = replace(self._shapes[first, second], rate_bps=rate_bps)
        return self._simulation.now_s

    def change_queue(self, first: str, second: str, queue_bytes: int) -> float:
        self._require(first, second)
        self._network.links[first, second].set_queue(queue_bytes)
        self._shapes[first, second] = replace(self._shapes[first, second], queue_bytes=queue_bytes)
        return self._simulation.now_s

    def change_delay(
        self,
        first: str,
        second: str,
        *,
        delay_s: float | None = None,
        jitter_s: float | None = None,
        loss: float | None = None,
    ) -> float:
        self._require(first, second)
        given = {"delay_s": delay_s, "jitter_s": jitter_s, "loss": loss}
        changes = {key: value for key, value in given.items() if value is not None}
        now = self._settings[first, second] = replace(self._settings[first, second], **changes)
        link = self._network.links[first, second]
        link.loss = now.loss
        link.jitter_s = 2 * now.jitter_s
        link.delay_s = now.delay_s - now.jitter_s
        return self._simulation.now_s


@dataclass(frozen=True, kw_only=True)
class SimulatedAccess:
    """What the simulated kinds use of `LabAccess`, and the simulated network itself.

    Attributes:
        clock: the simulation.
        simulated: the network.
        records, shared: as those of `LabAccess`.
    """

    clock: Simulation
    simulated: SimulatedNetwork
    records: Path
    shared: Path
    links: SimulatedLinks = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", SimulatedLinks(self.clock, self.simulated))

    @property
    def network(self) -> Mapping[str, Any]:
        return self.simulated.info

    @property
    def hosts(self) -> Mapping[str, HostInfo]:
        return hosts_from_json(self.simulated.info)

    def now_s(self) -> float:
        return self.clock.now_s

    def sleep(self, duration_s: float) -> None:
        """All that was sent before has been counted."""

    def barrier(self, switch: str) -> None:
        """Switches act at once."""

    def set_port(self, switch: str, port: int, *, up: bool) -> None:
        """Takes the port's link down, or up; before anything is sent, prepares for that."""
        (other,) = (
            ends[1]["node"]
            for link in self.network["links"]
            for ends in ((link["first"], link["second"]), (link["second"], link["first"]))
            if (ends[0]["node"], ends[0]["number"]) == (switch, port)
        )
        if not self.clock.events:
            self.simulated.prepare_cut(switch, other)
        else:
            self.simulated.set_link(switch, other, up=up)
