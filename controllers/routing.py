"""Installs shortest paths in the switches, and new ones when a link goes down or comes up.

Paths of equal cost share a SELECT group. The switch chooses a bucket by a hash, so one flow stays
on one path. OpenFlow 1.3 leaves the hash to the switch. That of Open vSwitch 3.1 covers addresses
and TCP ports but not UDP ports: 256 UDP flows between two hosts took one of four paths here. The
extension that changes this does not exist in OpenFlow 1.3. So a few rules per host match bits of
UDP's source port and point to groups with the same buckets in rotated order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from controllers.shortest_paths import Change, Hops, Routes, link_name, routes, udp_turns, waves

# A packet passes these tables in this order: impairments of packets that arrive at a port,
# impairments of packets that leave for a host, forwarding.
ARRIVING_TABLE, LEAVING_TABLE, FORWARDING_TABLE = 0, 1, 2
_PRIORITY = 10
_IPV4, _UDP = 0x0800, 17
_POLL_S = 0.001


class Fabric(Protocol):
    """The part of the application that routing uses."""

    def ask(self, switch: str, request: Any) -> list[Any]:
        """Send a request and return the body of its answer."""

    def barrier(self, switch: str) -> None:
        """Return when the switch has processed everything sent before."""

    def sleep(self, duration_s: float) -> None:
        """Wait, while other green threads run."""


class Routing:
    """The forwarding rules of all switches.

    Its methods wait for answers of switches. Call them from green threads, never from the event
    handlers that deliver these answers.

    Args:
        network: the lab's description (`LabInfo.as_json`).
        fabric: the application.
        report: called with a sentence about each change.
    """

    def __init__(
        self, network: dict[str, Any], fabric: Fabric, report: Callable[[str], None]
    ) -> None:
        self._network = network
        self._fabric = fabric
        self._report = report
        self._neighbours = _neighbours(network)
        self._datapaths: dict[str, Any] = {}
        self._installed: Routes = {name: {} for name in network["switches"]}
        self._groups: dict[str, dict[tuple[int, ...], int]] = {
            name: {} for name in network["switches"]
        }
        self._open_vswitches: set[str] = set()
        self._dead_ports: set[tuple[str, int]] = set()
        self._computed: tuple[frozenset[frozenset[str]], Routes] | None = None
        self._asked = self._done = 0
        self._busy = False

    @property
    def down(self) -> set[frozenset[str]]:
        """The links with a dead port at either end."""
        return {
            link_name(switch, self._neighbours[switch, port]) for switch, port in self._dead_ports
        }

    def connect(self, switch: str, datapath: Any) -> None:
        """Write all rules of a switch that has connected; a barrier then confirms them."""
        description = self._fabric.ask(
            switch, datapath.ofproto_parser.OFPDescStatsRequest(datapath, 0)
        )
        if any(b"Open vSwitch" in field for field in description):
            self._open_vswitches.add(switch)
        self._datapaths[switch] = datapath
        self._installed[switch], self._groups[switch] = {}, {}
        for mac, hops in self._current()[switch].items():
            self._apply(Change(switch, mac, hops))

    def disconnect(self, switch: str) -> None:
        """Note that a switch has disconnected, so that it gets no rules until it connects again."""
        self._datapaths.pop(switch, None)

    def port_state(self, switch: str, port: int, up: bool) -> None:
        """Reroute after a switch reports a port dead or alive; ignore ports without a link."""
        if (switch, port) not in self._neighbours or ((switch, port) not in self._dead_ports) == up:
            return
        self._dead_ports ^= {(switch, port)}
        state = "alive" if up else "dead"
        self._report(f"{switch} port {port} (to {self._neighbours[switch, port]}) is {state}")
        self._reroute()

    def _current(self) -> Routes:
        down = frozenset(self.down)
        if self._computed is None or self._computed[0] != down:
            self._computed = down, routes(self._network, down)
        return self._computed[1]

    def _reroute(self) -> None:
        """Install the present routes; a call during another makes that one go on until done."""
        self._asked += 1
        wanted = self._asked
        while self._busy:
            if self._done >= wanted:
                return
            self._fabric.sleep(_POLL_S)
        if self._done >= wanted:
            return
        self._busy = True
        try:
            while self._done < self._asked:
                asked = self._asked
                self._install(self._current())
                self._done = asked
        finally:
            self._busy = False

    def _install(self, wanted: Routes) -> None:
        reachable = {name: wanted[name] for name in self._datapaths}
        count = 0
        for wave in waves(self._installed, reachable):
            touched = sorted({change.switch for change in wave})
            for change in wave:
                self._apply(change)
            for switch in touched:
                self._fabric.barrier(switch)
            count += len(wave)
        for switch in reachable:
            self._drop_unused_groups(switch)
        self._report(f"{count} rules changed; down: {sorted(map(sorted, self.down))}")

    def _apply(self, change: Change) -> None:
        """Send one change; the switch replaces a rule with the same match as a whole."""
        datapath = self._datapaths[change.switch]
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        match = parser.OFPMatch(eth_dst=change.mac)
        if change.hops is None:
            del self._installed[change.switch][change.mac]
            self._remove(datapath, match, command=protocol.OFPFC_DELETE_STRICT, priority=_PRIORITY)
            return
        self._add_flow(change.switch, _PRIORITY, match, change.hops.buckets())
        self._spread_udp(change.switch, change.mac, change.hops)
        self._installed[change.switch][change.mac] = change.hops

    def _spread_udp(self, switch: str, mac: str, hops: Hops) -> None:
        """Add rules by which UDP's source port rotates the group's buckets.

        Without these rules, all UDP flows between two hosts take the same path.
        """
        datapath = self._datapaths[switch]
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        if switch not in self._open_vswitches:
            return
        udp = {"eth_dst": mac, "eth_type": _IPV4, "ip_proto": _UDP}
        self._remove(datapath, parser.OFPMatch(**udp), command=protocol.OFPFC_DELETE)
        for turn, bits in enumerate(udp_turns(hops)):
            match = parser.OFPMatch(**udp, udp_src=bits)
            self._add_flow(switch, _PRIORITY + 1, match, hops.buckets(turn))

    @staticmethod
    def _remove(datapath: Any, match: Any, **how: int) -> None:
        protocol = datapath.ofproto
        datapath.send_msg(
            datapath.ofproto_parser.OFPFlowMod(
                datapath=datapath,
                table_id=FORWARDING_TABLE,
                out_port=protocol.OFPP_ANY,
                out_group=protocol.OFPG_ANY,
                match=match,
                **how,
            )
        )

    def _add_flow(self, switch: str, priority: int, match: Any, buckets: tuple[int, ...]) -> None:
        datapath = self._datapaths[switch]
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        if len(buckets) == 1:
            action = parser.OFPActionOutput(buckets[0])
        else:
            action = parser.OFPActionGroup(self._group(switch, buckets))
        datapath.send_msg(
            parser.OFPFlowMod(
                datapath=datapath,
                table_id=FORWARDING_TABLE,
                priority=priority,
                match=match,
                instructions=[parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, [action])],
            )
        )

    def _group(self, switch: str, buckets: tuple[int, ...]) -> int:
        """The number of the group for these ports; created on first use."""
        known = self._groups[switch]
        if buckets in known:
            return known[buckets]
        number = max(known.values(), default=0) + 1
        datapath = self._datapaths[switch]
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        parts = [
            parser.OFPBucket(
                weight=1,
                watch_port=protocol.OFPP_ANY,
                watch_group=protocol.OFPG_ANY,
                actions=[parser.OFPActionOutput(port)],
            )
            for port in buckets
        ]
        addition = (protocol.OFPGC_ADD, protocol.OFPGT_SELECT, number, parts)
        datapath.send_msg(parser.OFPGroupMod(datapath, *addition))
        # Without the barrier a switch may process the rule before its group.
        datapath.send_msg(parser.OFPBarrierRequest(datapath))
        known[buckets] = number
        return number

    def _drop_unused_groups(self, switch: str) -> None:
        used = {
            hops.buckets(turn)
            for hops in self._installed[switch].values()
            for turn in range(len(hops.ports))
        }
        datapath = self._datapaths[switch]
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        for buckets in [each for each in self._groups[switch] if each not in used]:
            number = self._groups[switch].pop(buckets)
            removal: tuple[Any, ...] = (protocol.OFPGC_DELETE, protocol.OFPGT_SELECT, number, [])
            datapath.send_msg(parser.OFPGroupMod(datapath, *removal))


def _neighbours(network: dict[str, Any]) -> dict[tuple[str, int], str]:
    """The node at the other end of each switch port that has a link."""
    found = {}
    for link in network["links"]:
        for own, other in ((link["first"], link["second"]), (link["second"], link["first"])):
            if own["node"] in network["switches"]:
                found[own["node"], own["number"]] = other["node"]
    return found
