"""The switches by name, and what each should hold: whenever it connects, it is brought back."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controllers import openflow
from controllers.framework import Datapath, hub
from controllers.impairments.base import MeterCounts, NotMeasuredError
from controllers.openflow import (
    ARRIVING_TABLE,
    FORWARDING,
    FORWARDING_TABLE,
    ClosedError,
    Connection,
    Flow,
    Meter,
    Order,
    Place,
    RefusedError,
    SwitchError,
    parser,
    protocol,
)

_WAITING_S = 5.0
_log = logging.getLogger("controllers.switches")


@dataclass(frozen=True, kw_only=True)
class PortState:
    """A port's hardware address; whether it was taken down, and whether it has a carrier."""

    address: str
    is_down: bool
    is_live: bool

    @staticmethod
    def of(description: Any) -> PortState:
        """Read OpenFlow's description of a port."""
        is_down = bool(description.config & protocol.OFPPC_PORT_DOWN)
        no_carrier = bool(description.state & protocol.OFPPS_LINK_DOWN)
        return PortState(
            address=description.hw_addr, is_down=is_down, is_live=not (is_down or no_carrier)
        )


def ports_of(connection: Connection) -> dict[int, PortState]:
    """Ask a switch that has connected for its ports."""
    ports = connection.ask(parser.OFPPortDescStatsRequest, "its ports")
    return {port.port_no: PortState.of(port) for port in ports}


class Switch:
    """A switch of the network, connected or not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._connection: Connection | None = None
        self._connected = hub.Event()
        self._addresses: dict[int, str] = {}  # of the ports
        self._flows: dict[Place, Flow] = {}
        self._groups: dict[tuple[int, ...], int] = {}  # that the connection has made, by ports
        self._meters: dict[int, Meter] = {}
        # The connection on which a meter has counted from its begin.
        self._counting: dict[int, Connection] = {}
        self._ports: dict[int, tuple[bool, str]] = {}  # that someone sets: whether up, and who
        self._refusals: dict[str, list[str]] = {}
        for table in range(ARRIVING_TABLE, FORWARDING_TABLE):
            self.put(Flow(table=table, priority=1, goto=table + 1))

    # The plan

    def put(self, *flows: Flow) -> None:
        """Add flow entries; each replaces the one in its place."""
        self._flows |= {flow.place: flow for flow in flows}
        self._send(self._installation(flows))

    def drop(self, *flows: Flow) -> None:
        """Remove flow entries."""
        for flow in flows:
            self._flows.pop(flow.place, None)
        self._send([openflow.remove_flow(each) for each in flows])

    def drop_numbered(self, number: int, owner: str) -> None:
        """Remove all flow entries of an impairment."""
        self._flows = {place: flow for place, flow in self._flows.items() if flow.number != number}
        self._send([openflow.remove_numbered_flows(number, owner)])

    def drop_unused_groups(self) -> None:
        """Remove the groups that no flow entry needs any more."""
        used = {flow.ports for flow in self._flows.values()}
        unused = [self._groups.pop(ports) for ports in set(self._groups) - used]
        self._send([openflow.remove_group(each) for each in unused])

    def put_meter(self, number: int, meter: Meter) -> None:
        """Add a meter."""
        self._meters[number] = meter
        if self._connection is not None:
            self._counting[number] = self._connection
        self._send([openflow.add_meter(number, meter)])

    def drop_meter(self, number: int, owner: str) -> None:
        """Remove a meter, and with it all flows that use it."""
        self._meters.pop(number, None)
        self._counting.pop(number, None)
        self._flows = {place: flow for place, flow in self._flows.items() if flow.meter != number}
        self._send([openflow.remove_meter(number, owner)])

    def set_port(self, port: int, owner: str, *, up: bool) -> None:
        """Take a port down or up. Before the switch has connected, it says how it shall be then."""
        self._ports[port] = up, owner
        if self._connection is not None and port not in self._addresses:
            raise SwitchError(f"switch {self.name} has no port {port}")
        address = self._addresses.get(port, "")
        self._send([openflow.set_port(port, address, owner, up=up)])

    def meter_counts(self, number: int) -> MeterCounts:
        """What a meter has counted since it was added."""
        connection = self._connection
        if connection is None or self._counting.get(number) is not connection:
            raise NotMeasuredError(f"{self.name} has reconnected, and its meter counts anew")

        try:
            body = connection.ask(parser.OFPMeterStatsRequest, "the counts of a meter", 0, number)
        except SwitchError as error:
            raise NotMeasuredError(str(error)) from None
        return MeterCounts(
            packets=sum(each.packet_in_count for each in body),
            size_bytes=sum(each.byte_in_count for each in body),
            dropped=sum(band.packet_band_count for each in body for band in each.band_stats),
        )

    # The connection

    def open(self, datapath: Datapath) -> Connection:
        """A new connection, which nothing uses before `bring_back`; an older one has ended."""
        if self._connection is not None:
            self.closed(self._connection)
        return Connection(self.name, datapath, self._refused)

    def live_ports(self, ports: Mapping[int, PortState]) -> dict[int, bool]:
        """Which ports will forward once the plan is installed: none that someone holds down."""
        return {
            number: port.is_live and self._ports.get(number, (True, ""))[0]
            for number, port in ports.items()
        }

    def bring_back(self, connection: Connection, ports: Mapping[int, PortState]) -> None:
        """Use this connection from now on; return when the switch has confirmed the whole plan."""
        self._connection = connection
        self._addresses = {number: port.address for number, port in ports.items()}
        self._groups = {}
        for number in self._meters:
            self._counting.setdefault(number, connection)
        # One piece, in which nothing else comes between: so the switch forwards nothing for a
        # moment alone, and no change of the plan is lost.
        connection.send(
            [
                *openflow.remove_everything(),
                *(openflow.add_meter(*each) for each in self._meters.items()),
                openflow.barrier(),
                *self._installation(self._flows.values()),
                *self._port_changes(ports),
            ]
        )
        self._connected.set()
        connection.barrier()
        for owner in list(self._refusals):
            self._raise_refusals(owner)

    def closed(self, connection: Connection) -> bool:
        """Note that a connection has ended; whether it was the present one."""
        connection.closed()
        if connection is not self._connection:
            return False
        self._connection = None
        self._connected.clear()
        return True

    def confirm(self, owner: str) -> None:
        """Return when the switch has processed everything sent before; waits until it connects."""
        while True:
            while not self._connected.wait(_WAITING_S):
                _log.warning("%s waits for switch %s, which is not connected", owner, self.name)
            if self._confirmed():
                break
        self._raise_refusals(owner)

    def confirm_forwarding(self) -> None:
        """The same for forwarding rules, of a switch that is connected; others get them later."""
        self._confirmed()
        self._raise_refusals(FORWARDING)

    def _refused(self, owner: str, sentence: str) -> None:
        """Note that the switch refused a message; whoever confirms next for its owner learns it."""
        self._refusals.setdefault(owner, []).append(sentence)

    def _confirmed(self) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.barrier()
        except ClosedError:
            return False
        return True

    def _raise_refusals(self, owner: str) -> None:
        if sentences := self._refusals.pop(owner, []):
            more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
            raise RefusedError(f"{sentences[0]}{more}")

    def _send(self, orders: list[Order]) -> None:
        if self._connection is not None:
            self._connection.send(orders)

    def _installation(self, flows: Iterable[Flow]) -> list[Order]:
        """The messages that add entries, after the groups that they need and that are new."""
        groups, entries = [], []
        for flow in flows:
            if len(flow.ports) > 1 and flow.ports not in self._groups:
                taken = set(self._groups.values())
                number = next(each for each in itertools.count(1) if each not in taken)
                self._groups[flow.ports] = number
                groups.append(openflow.add_group(number, flow.ports))
            entries.append(openflow.add_flow(flow, self._groups.get(flow.ports)))
        # Without the barrier a switch may process an entry before its group.
        return [*groups, openflow.barrier(), *entries] if groups else entries

    def _port_changes(self, ports: Mapping[int, PortState]) -> list[Order]:
        """The messages that make the ports which someone sets as they are to be."""
        changes = []
        for number, (up, owner) in self._ports.items():
            if number not in ports:
                _log.warning("switch %s has no port %d, which %s sets", self.name, number, owner)
            elif ports[number].is_down == up:
                change = openflow.set_port(number, ports[number].address, owner, up=up)
                changes.append(change)
        return changes
