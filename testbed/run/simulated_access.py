"""What impairments may use in virtual time: `LabAccess` as a simulated network has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from controllers.impairments.base import LabAccess, MeterCounts
from testbed.lab import paths
from testbed.lab.delay import DelaySettings
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.link_control import LinkControl
from testbed.lab.loss_table import LossTable
from testbed.run.simulated_network import SimulatedNetwork
from testbed.simulate.arrivals import Arrivals
from testbed.simulate.engine import Simulation
from testbed.simulate.gate import Gate, Meter
from testbed.simulate.link import Flags


class SimulatedLinks(LinkControl):
    """The lab's, whose changes are made in virtual time."""

    def __init__(self, network: SimulatedNetwork) -> None:
        super().__init__(network.info)
        self._network = network

    def offered(self, first: str, second: str) -> tuple[int, int]:
        self._require(first, second)
        link = self._network.links[first, second]
        link.catch_up()
        return link.sent - link.dropped, link.dropped

    def _set_shape(self, way: tuple[str, str], key: str, shape: LinkShape) -> None:
        link = self._network.links[way]
        if key == "rate_bps":
            link.set_rate(shape.rate_bps)
        else:
            link.set_queue(shape.queue_bytes)

    def _set_delay(self, way: tuple[str, str], delay: DelaySettings) -> None:
        link = self._network.links[way]
        link.loss = delay.loss
        link.jitter_s = 2 * delay.jitter_s
        link.delay_s = delay.delay_s - delay.jitter_s


class SimulatedFilter:
    """Loses the packets of a table at a place in the network; nothing but data comes there."""

    def __init__(self, place: Arrivals | Gate, table: LossTable) -> None:
        self._place = place
        self._table = table
        self._occurrence = self._met = self._dropped = 0
        self._lost: Flags = np.zeros(0, np.bool_)  # of the occurrence's first packets

    def lose(self, *, data_ports: tuple[int, int] | None, occurrence: int) -> None:
        """From now on, the packets of this occurrence."""
        self._occurrence = occurrence
        self._lost = np.zeros(0, np.bool_)
        self._met = self._dropped = 0
        self._place.lose(self._keeps)

    def clear(self) -> None:
        """No longer."""
        self._place.lose_no_longer(self._keeps)

    def take(self) -> tuple[int, int]:
        """What it has met and dropped."""
        return self._met, self._dropped

    def _keeps(self, count: int) -> Flags:
        first, end = self._met, self._met + count
        if end > len(self._lost):
            self._lost = np.zeros(2 * end, np.bool_)
            self._lost[self._table.losses(self._occurrence, 2 * end)] = True
        lost = self._lost[first:end]
        self._met = end
        self._dropped += int(np.count_nonzero(lost))
        return ~lost


class SimulatedAccess(LabAccess):
    """The simulator's: switches act at once."""

    def __init__(
        self, clock: Simulation, simulated: SimulatedNetwork, *, records: Path, shared: Path
    ) -> None:
        links = SimulatedLinks(simulated)
        super().__init__(simulated.info, links, records=records, shared=shared)
        self.clock = clock
        self.simulated = simulated
        self._metered: dict[int, Gate] = {}
        self._meters: dict[int, Meter] = {}

    def now_s(self) -> float:
        return self.clock.now_s

    def sleep(self, duration_s: float) -> None:
        """All that was sent before has been counted."""

    def barrier(self, switch: str) -> None:
        """Nothing is outstanding."""

    def set_port(self, switch: str, port: int, *, up: bool) -> None:
        """Before anything is sent, prepares for that."""
        other = self._neighbour(switch, port)
        if not self.clock.events:
            self.simulated.prepare_cut(switch, other)
        else:
            self.simulated.set_link(switch, other, up=up)

    def _neighbour(self, switch: str, port: int) -> str:
        """The node at the other end of a switch's port."""
        return next(
            str(other["node"])
            for _, own, other in paths.directions(self.network)
            if (own["node"], own["number"]) == (switch, port)
        )

    def arrival_filter(self, sender: str, receiver: str, table: LossTable) -> SimulatedFilter:
        if receiver in self.network["switches"]:
            return SimulatedFilter(self.simulated.gate_behind(sender, receiver), table)
        return SimulatedFilter(self.simulated.arrivals[receiver], table)

    def prepare_meter(self, switch: str, match: Mapping[str, Any]) -> int:
        number, network = self.unique(), self.simulated
        if "in_port" in match:
            gate = network.gate_behind(self._neighbour(switch, match["in_port"]), switch)
        else:
            macs = {host.mac: name for name, host in self.hosts.items()}
            gate = network.gate_before(switch, macs[match["eth_dst"]])
        self._metered[number] = gate
        return number

    def meter_flow(
        self,
        switch: str,
        match: Mapping[str, Any],
        *,
        number: int,
        rate_bps: int,
        burst_bytes: int,
        drop: bool = False,
        above: int = 0,
        spared: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Only data comes there, so nothing of it is spared."""
        meter = Meter(self.clock, rate_bps=rate_bps, burst_bytes=burst_bytes, drop=drop)
        self._meters[number] = meter
        self._metered[number].meter(meter)

    def end_metering(self, switch: str, number: int) -> None:
        self._metered[number].meter_no_longer(self._meters[number])

    def meter_counts(self, switch: str, number: int) -> MeterCounts:
        meter = self._meters[number]
        return MeterCounts(packets=meter.sent, size_bytes=meter.sent_bytes, dropped=meter.dropped)

    def remove_meter(self, switch: str, number: int) -> None:
        del self._meters[number]
