"""Puts the shortest paths into the switches, and new ones when a link goes down or comes up.

Paths of equal cost share a SELECT group: the switch chooses its bucket by a hash, so that one flow
stays on one path. OpenFlow 1.3 leaves the hash to the switch. Open vSwitch 3.1's covers addresses
and TCP's ports but not UDP's (256 UDP flows between two hosts took one of four paths here), and the
extension that changes this does not exist in OpenFlow 1.3. So a few rules per host, by bits of
UDP's source port, point to the same group with its buckets turned.
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
    """What routing needs of the application."""

    def ask(self, switch: str, request: Any) -> list[Any]:
        """Send a request and return the body of its answer."""

    def barrier(self, switch: str) -> None:
        """Return when the switch has processed everything sent before."""

    def sleep(self, duration_s: float) -> None:
        """Let other green threads run meanwhile."""


class Routing:
    """The forwarding rules of all switches.

    Its methods wait for answers of switches: call them from green threads, never from the event
    handlers that deliver these answers.

    Args:
        network: the lab's description (`LabInfo.as_json`).
        fabric: the application.
        report: told in a sentence what has changed.
    """

    def __init__(
        self, network: dict[str, Any], fabric: Fabric, report: Callable[[str], None]
    ) -> None:
        self._network = network
        self._fabric = fabric
        self._report = report
        self._neighbours = _neighbours(network)
        self._links = {link_name(switch, node) for (switch, _), node in self._neighbours.items()}
        self._datapaths: dict[str, Any] = {}
        self._installed: Routes = {name: {} for name in network["switches"]}
        self._groups: dict[str, dict[tuple[int, ...], int]] = {
            name: {} for name in network["switches"]
        }
        self._open_vswitches: set[str] = set()
        self._dead_ports: set[tuple[str, int]] = set()
        self._taken_down: set[frozenset[str]] = set()
        self._computed: tuple[frozenset[frozenset[str]], Routes] | None = None
        self._asked = self._done = 0
        self._busy = False

    @property
    def down(self) -> set[frozenset[str]]:
        """The links that carry nothing: taken down, or with a dead port at either end."""
        dead = {
            link_name(switch, self._neighbours[switch, port]) for switch, port in self._dead_ports
        }
        return self._taken_down | dead

    @property
    def installed(self) -> Routes:
        """The rules in force."""
        return self._installed

    def connect(self, switch: str, datapath: Any) -> None:
        """Write all rules of a switch that has connected; they are in force after a barrier."""
        description = self._fabric.ask(
            switch, datapath.ofproto_parser.OFPDescStatsRequest(datapath, 0)
        )
        if any(b"Open vSwitch" in field for field in description):
            self._open_vswitches.add(switch)
        self._datapaths[switch] = datapath
        self._installed[switch], self._groups[switch] = {}, {}
        self._write(self._current()[switch], switch)

    def disconnect(self, switch: str) -> None:
        """A switch is gone: there is nothing to tell it until it connects again."""
        self._datapaths.pop(switch, None)

    def port_state(self, switch: str, port: int, up: bool) -> None:
        """A switch says that one of its ports is dead or alive; ports of no link are ignored."""
        if (switch, port) not in self._neighbours or ((switch, port) not in self._dead_ports) == up:
            return
        self._dead_ports ^= {(switch, port)}
        state = "alive" if up else "dead"
        self._report(f"{switch} port {port} (to {self._neighbours[switch, port]}) is {state}")
        self._reroute()

    def link_state(self, first: str, second: str, up: bool) -> None:
        """Route around a link, or over it again; returns when all switches have confirmed.

        Raises:
            ValueError: there is no such link.
            TimeoutError: a switch does not answer.
        """
        link = link_name(first, second)
        if link not in self._links:
            raise ValueError(f"there is no link between {first} and {second}")
        if (link not in self._taken_down) != up:
            self._taken_down ^= {link}
            self._reroute()

    def _current(self) -> Routes:
        down = frozenset(self.down)
        if self._computed is None or self._computed[0] != down:
            self._computed = down, routes(self._network, down)
        return self._computed[1]

    def _reroute(self) -> None:
        """Install what is right now; calls that come meanwhile make the one in progress go on."""
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

    def _write(self, table: dict[str, Any], switch: str) -> None:
        for mac, hops in table.items():
            self._apply(Change(switch, mac, hops))

    def _apply(self, change: Change) -> None:
        """Send one change; a rule with the same match is replaced as a whole by the switch."""
        datapath = self._datapaths[change.switch]
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        match = parser.OFPMatch(eth_dst=change.mac)
        if change.hops is None:
            del self._installed[change.switch][change.mac]
            datapath.send_msg(
                parser.OFPFlowMod(
                    datapath=datapath,
                    table_id=FORWARDING_TABLE,
                    command=protocol.OFPFC_DELETE_STRICT,
                    priority=_PRIORITY,
                    out_port=protocol.OFPP_ANY,
                    out_group=protocol.OFPG_ANY,
                    match=match,
                )
            )
            return
        self._add_flow(change.switch, _PRIORITY, match, change.hops.buckets())
        self._spread_udp(change.switch, change.mac, change.hops)
        self._installed[change.switch][change.mac] = change.hops

    def _spread_udp(self, switch: str, mac: str, hops: Hops) -> None:
        """Let UDP's source port turn the group's buckets.

        Without these rules the one above holds, for all UDP between two hosts alike.
        """
        datapath = self._datapaths[switch]
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        if switch not in self._open_vswitches:
            return
        udp = {"eth_dst": mac, "eth_type": _IPV4, "ip_proto": _UDP}
        datapath.send_msg(
            parser.OFPFlowMod(
                datapath=datapath,
                table_id=FORWARDING_TABLE,
                command=protocol.OFPFC_DELETE,
                out_port=protocol.OFPP_ANY,
                out_group=protocol.OFPG_ANY,
                match=parser.OFPMatch(**udp),
            )
        )
        for turn, bits in enumerate(udp_turns(hops)):
            match = parser.OFPMatch(**udp, udp_src=bits)
            self._add_flow(switch, _PRIORITY + 1, match, hops.buckets(turn))

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
        """The group that chooses among these ports; made if it is not there yet."""
        known = self._groups[switch]
        if buckets in known:
            return known[buckets]
        number = max(known.values(), default=0) + 1
        datapath = self._datapaths[switch]
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        datapath.send_msg(
            parser.OFPGroupMod(
                datapath,
                protocol.OFPGC_ADD,
                protocol.OFPGT_SELECT,
                number,
                [
                    parser.OFPBucket(
                        weight=1,
                        watch_port=protocol.OFPP_ANY,
                        watch_group=protocol.OFPG_ANY,
                        actions=[parser.OFPActionOutput(port)],
                    )
                    for port in buckets
                ],
            )
        )
        # Without it a switch may take the rule before its group.
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
            datapath.send_msg(
                parser.OFPGroupMod(
                    datapath, protocol.OFPGC_DELETE, protocol.OFPGT_SELECT, number, []
                )
            )


def _neighbours(network: dict[str, Any]) -> dict[tuple[str, int], str]:
    """What is at the other end of each switch port that has a link."""
    found = {}
    for link in network["links"]:
        for own, other in ((link["first"], link["second"]), (link["second"], link["first"])):
            if own["node"] in network["switches"]:
                found[own["node"], own["number"]] = other["node"]
    return found
