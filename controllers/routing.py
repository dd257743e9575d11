"""Installs shortest paths in the switches, and new ones when a link goes down or comes up.

Paths of equal cost share a SELECT group, whose hash in Open vSwitch 3.1 leaves out UDP ports. So a
few rules per host match bits of UDP's source port and point to groups in rotated order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controllers.openflow_connection import Connection
from controllers.openflow_messages import FORWARDING_TABLE, Flow
from controllers.shortest_paths import Hops, Routes, link_name, routes, udp_turns, waves
from controllers.switch_plan import Switch, look

_PRIORITY = 10
_IPV4, _UDP = 0x0800, 17


class Routing:
    """The forwarding rules of all switches, as they are now."""

    # Its methods wait for answers of switches. Call them from green threads, never from the event
    # handlers that deliver these answers.

    def __init__(
        self,
        network: dict[str, Any],
        switches: Mapping[str, Switch],
        report: Callable[[str], None],
    ) -> None:
        self._network = network
        self._switches = switches
        self._report = report
        self._neighbours = _neighbours(network)
        self._planned: Routes = {name: {} for name in network["switches"]}
        self._dead_ports: set[tuple[str, int]] = set()
        self._is_stale = self._is_busy = False
        self._reroute()

    @property
    def down(self) -> set[frozenset[str]]:
        """The links with a dead port at either end."""
        return {
            link_name(switch, self._neighbours[switch, port]) for switch, port in self._dead_ports
        }

    @property
    def is_settled(self) -> bool:
        """Whether all rules fit what the switches have said about their ports."""
        return not self._is_busy

    def bring_back(self, switch: str, connection: Connection) -> None:
        """Reroute by what a connected switch says of its ports, then give it its whole plan."""
        found = look(connection)
        # A port that an impairment holds down comes back as up with the switch.
        self.ports_are(switch, self._switches[switch].live_ports(found))
        self._switches[switch].bring_back(connection, found)

    def ports_are(self, switch: str, live: Mapping[int, bool]) -> None:
        """Reroute where ports are not as they were; ports without a link do not count."""
        changed = [
            (switch, port)
            for port, is_live in live.items()
            if (switch, port) in self._neighbours
            and ((switch, port) not in self._dead_ports) != is_live
        ]
        for each in changed:
            self._dead_ports ^= {each}
            state = "dead" if each in self._dead_ports else "alive"
            self._report(f"{switch} port {each[1]} (to {self._neighbours[each]}) is {state}")
        if changed:
            self._reroute()

    def _reroute(self) -> None:
        """Plan the present routes; a call during another makes that one go on."""
        self._is_stale = True
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._is_stale:
                self._is_stale = False
                self._install(routes(self._network, self.down))
        finally:
            self._is_busy = False

    def _install(self, wanted: Routes) -> None:
        count = 0
        for wave in waves(self._planned, wanted):
            for change in wave:
                self._apply(change.switch, change.mac, change.hops)
            for name in sorted({change.switch for change in wave}):
                self._switches[name].confirm_forwarding()
            count += len(wave)
        for switch in self._switches.values():
            switch.drop_unused_groups()
        self._report(f"{count} rules changed; down: {sorted(map(sorted, self.down))}")

    def _apply(self, switch: str, mac: str, hops: Hops | None) -> None:
        planned = self._planned[switch]
        before = _flows(mac, planned.pop(mac, None))
        after = _flows(mac, hops)
        places = {flow.place for flow in after}
        self._switches[switch].put(*(each for each in after if each not in before))
        self._switches[switch].drop(*(each for each in before if each.place not in places))
        if hops is not None:
            planned[mac] = hops


def _flows(mac: str, hops: Hops | None) -> list[Flow]:
    """The entries that forward to a host: one, and those that spread UDP over several paths."""
    if hops is None:
        return []
    host = ("eth_dst", mac)
    plain = Flow(table=FORWARDING_TABLE, priority=_PRIORITY, match=(host,), ports=hops.buckets())
    udp = (host, ("eth_type", _IPV4), ("ip_proto", _UDP))
    return [plain] + [
        Flow(
            table=FORWARDING_TABLE,
            priority=_PRIORITY + 1,
            match=(*udp, ("udp_src", bits)),
            ports=hops.buckets(turn),
            open_vswitch_only=True,  # OpenFlow 1.3 masks no port
        )
        for turn, bits in enumerate(udp_turns(hops))
    ]


def _neighbours(network: dict[str, Any]) -> dict[tuple[str, int], str]:
    """The node at the other end of each switch port that has a link."""
    found = {}
    for link in network["links"]:
        for own, other in ((link["first"], link["second"]), (link["second"], link["first"])):
            if own["node"] in network["switches"]:
                found[own["node"], own["number"]] = other["node"]
    return found
