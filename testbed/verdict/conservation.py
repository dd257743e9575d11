"""Packet conservation: on every directed link, sent = received + drops that somebody counted.

Each equation joins counters that are kept in different places, so that a packet that vanishes
uncounted shows. For a directed link, from the shaper's exit on:

    sent by the shaper (tc)  =  arrived at the far end + drops that were counted on the way

A host's IP layer counts what arrived at the host; the packet socket of a port counts what arrived
at the switch. The shaper itself may drop only in its own queue. For a switch:

    arrived + PacketOut  =  left by all shapers + table misses + drop flows and meters + refused

When a queue refuses a packet, Open vSwitch gives up the rest of its batch, at most 32 packets; if
it tries again, the refusal is counted twice. So `refused` stands for anything from nothing to 32
times the queues' drops, and a leak inside a switch is certain to show only where no queue
overflows. Where every flow entry stayed in place, the same equation holds for each output port.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from testbed.lab.kernel.link_counters import NamespaceCounters, Queue
from testbed.lab.network import LabInfo, LinkEnds, Port
from testbed.verdict.counters import Counters

BATCH_PACKETS = 32  # of Open vSwitch: NETDEV_MAX_BURST
# Shares are of at least this many packets: one odd packet on an idle link proves nothing.
LEAST_PACKETS = 1000
_FLOW_KINDS = ("police", "blackout", "link-down")


@dataclass(frozen=True, kw_only=True)
class LinkLedger:
    """One direction of a link, in packets.

    Attributes:
        offered: what the switch's flows, groups and PacketOuts sent to the port; None where that
            is not known: at a host, or where flows came and went.
        queue_drops: refused because the queue was full (or a loss class took it).
        filtered: dropped by the shaper for another reason, which should not happen.
        sent: left the shaper.
        interface_drops: not accepted by the far interface.
        delay_drops, delay_lost: in the middle of a delayed link, for lack of room and by the
            configured loss.
        socket_drops: found the buffer of the switch port's socket full.
        injected: dropped on purpose by an impairment at the receiving host.
        received: counted at the far end.
        unexplained: everything else; negative: more arrived than was sent.
    """

    link: str
    sender: str
    offered: int | None
    queue_drops: int
    filtered: int
    sent: int
    interface_drops: int
    delay_drops: int
    delay_lost: int
    socket_drops: int
    injected: int
    received: int
    unexplained: int

    @property
    def share(self) -> float:
        return abs(self.unexplained) / max(LEAST_PACKETS, self.sent)


@dataclass(frozen=True, kw_only=True)
class SwitchLedger:
    """One switch, in packets; see the module's equation. `reason`: why it was not closed."""

    switch: str
    arrived: int
    packet_outs: int
    table_misses: int
    flow_drops: int
    meter_drops: int
    queue_drops: int
    sent: int
    given_up: int
    unexplained: int
    reason: str = ""

    @property
    def share(self) -> float:
        return 0.0 if self.reason else abs(self.unexplained) / max(LEAST_PACKETS, self.sent)


@dataclass(frozen=True, kw_only=True)
class HostLedger:
    """What happened in the host: datagrams that found a socket's buffer full, and errors."""

    host: str
    received: int
    udp_buffer_drops: int
    udp_checksum_errors: int
    udp_no_socket: int


@dataclass(frozen=True, kw_only=True)
class Conservation:
    """The ledgers over one phase."""

    links: list[LinkLedger]
    switches: list[SwitchLedger]
    hosts: list[HostLedger]
    quiet: bool
    duration_s: float

    def worst(self) -> tuple[float, str]:
        """The largest share of unexplained packets, and where."""
        shares = [(each.share, f"{each.link} from {each.sender}") for each in self.links]
        shares += [(each.share, f"switch {each.switch}") for each in self.switches]
        return max(shares, default=(0.0, ""))

    def as_json(self) -> dict[str, Any]:
        """`conservation.json`, without the schema's number."""
        links = [asdict(each) for each in self.links]
        for record, each in zip(links, self.links, strict=True):
            record |= {"from": record.pop("sender"), "share": each.share}
        return {
            "duration_s": self.duration_s,
            "drained": self.quiet,
            "links": links,
            "switches": [asdict(each) | {"share": each.share} for each in self.switches],
            "hosts": [asdict(each) for each in self.hosts],
        }


def close(
    network: LabInfo, before: Counters, after: Counters, events: Sequence[Mapping[str, Any]]
) -> Conservation:
    """The ledgers of what happened between two readings.

    Args:
        events: records of events/impairments.jsonl: PacketOut frames, drops by flows and meters.
    """
    books = _Books(network, before, after, events)
    return Conservation(
        links=[
            books.link(link, sender, receiver)
            for link in network.links
            for sender, receiver in ((link.first, link.second), (link.second, link.first))
        ],
        switches=[books.switch(name) for name in network.switches],
        hosts=[books.host(name) for name in network.hosts],
        quiet=after.quiet,
        duration_s=after.at_s - before.at_s,
    )


class _Books:
    """Differences of two readings."""

    def __init__(
        self,
        network: LabInfo,
        before: Counters,
        after: Counters,
        events: Sequence[Mapping[str, Any]],
    ) -> None:
        self._network = network
        self._before = before
        self._after = after
        self._ended = [each for each in events if each.get("action") == "end"]

    def link(self, link: LinkEnds, sender: Port, receiver: Port) -> LinkLedger:
        queue = self._queue(sender)
        offered = self._offered(sender)
        way = (link.name, sender.node)
        delay_drops, delay_lost = _gained(self._before.delayed, self._after.delayed, way)
        arrived, socket_drops = self._arrived(receiver)
        injected = self._injected(sender, receiver)
        interface_drops = self._interface(sender, "send_drops")
        on_the_way = interface_drops + delay_drops + delay_lost + injected
        unexplained = queue.filtered + queue.sent - on_the_way - arrived
        if offered is not None:
            unexplained += _beyond_refusals(offered - queue.sent - queue.filtered, queue.drops)
        return LinkLedger(
            link=link.name,
            sender=sender.node,
            offered=offered,
            queue_drops=queue.drops,
            filtered=queue.filtered,
            sent=queue.sent,
            interface_drops=interface_drops,
            delay_drops=delay_drops,
            delay_lost=delay_lost,
            socket_drops=socket_drops,
            injected=injected,
            received=arrived - socket_drops,
            unexplained=unexplained,
        )

    def switch(self, name: str) -> SwitchLedger:
        ports = list(self._ports(name))
        arrivals = [self._arrived(port) for port in ports]
        arrived = sum(packets - drops for packets, drops in arrivals)
        queues = [self._queue(port) for port in ports]
        sent = sum(queue.sent for queue in queues)
        refused = sum(queue.drops for queue in queues)
        before, after = self._before.switches[name], self._after.switches[name]
        went_down = any(each.get("counts_as") == "link-down" for each in self._ended)
        cut = "a link went down, which empties its queue uncounted" if went_down else ""
        misses = (after.lookups - after.matched) - (before.lookups - before.matched)
        packet_outs = sum(self._packet_outs(port) for port in ports)
        flow_drops = self._dropped_by("blackout", name)
        if flow_drops is None:
            old = {flow.identity: flow.packets for flow in before.flows}
            flow_drops = sum(
                flow.packets - old.get(flow.identity, 0)
                for flow in after.flows
                if flow.actions == "drop"
            )
        meter_drops = self._dropped_by("police", name)
        if meter_drops is None:
            meter_drops = max(0, after.meter_drops - before.meter_drops)
        lost = arrived + packet_outs - misses - flow_drops - meter_drops - sent
        lost -= sum(queue.filtered for queue in queues)  # the link's business
        return SwitchLedger(
            switch=name,
            arrived=arrived,
            packet_outs=packet_outs,
            table_misses=misses,
            flow_drops=flow_drops,
            meter_drops=meter_drops,
            queue_drops=refused,
            sent=sent,
            given_up=max(0, lost - refused),
            unexplained=_beyond_refusals(lost, refused),
            reason=cut,
        )

    def host(self, name: str) -> HostLedger:
        pid = self._network.hosts[name].pid

        def gained(key: str) -> int:
            old, new = self._namespace(pid)
            return new.protocols.get(key, 0) - old.protocols.get(key, 0)

        return HostLedger(
            host=name,
            received=gained("Ip.InReceives"),
            udp_buffer_drops=gained("Udp.RcvbufErrors"),
            udp_checksum_errors=gained("Udp.InCsumErrors"),
            udp_no_socket=gained("Udp.NoPorts"),
        )

    # Parts of the equations

    def _namespace(self, pid: int | None) -> tuple[NamespaceCounters, NamespaceCounters]:
        return self._before.namespaces[pid], self._after.namespaces[pid]

    def _interface(self, port: Port, what: str) -> int:
        old, new = self._namespace(port.pid)
        before, after = old.interfaces[port.interface], new.interfaces[port.interface]
        return int(getattr(after, what) - getattr(before, what))

    def _queue(self, port: Port) -> _QueueSums:
        old, new = (_sums(each.queues[port.interface]) for each in self._namespace(port.pid))
        return _QueueSums(*(later - earlier for earlier, later in zip(old, new, strict=True)))

    def _arrived(self, port: Port) -> tuple[int, int]:
        """Packets that the far end of a link counted; how many of them found a socket full."""
        if port.pid is None:
            return _gained(self._before.sockets, self._after.sockets, port.interface)
        old, new = self._namespace(port.pid)
        packets = sum(
            new.protocols.get(key, 0) - old.protocols.get(key, 0)
            for key in ("Ip.InReceives", "Ip6InReceives")
        )
        packets -= new.interfaces["lo"].received - old.interfaces["lo"].received
        # Frames of unknown EtherType, such as those of bursts, count as receive drops.
        return packets + self._interface(port, "receive_drops"), 0

    def _injected(self, sender: Port, receiver: Port) -> int:
        """Packets that impairments dropped at the receiving end, before anything else saw them."""
        if receiver.pid is not None:  # a host: by rules with a counter
            host = receiver.node
            return self._after.filter_drops.get(host, 0) - self._before.filter_drops.get(host, 0)
        target = f"{sender.node}->{receiver.node}"
        return sum(  # a switch: by an XDP program, whose owner alone can read its counter
            int(each.get("dropped") or 0)
            for each in self._ended
            if each.get("counts_as") == "loss" and each.get("target") == target
        )

    def _ports(self, switch: str) -> Iterable[Port]:
        for link in self._network.links:
            for end in (link.first, link.second):
                if end.node == switch:
                    yield end

    def _packet_outs(self, port: Port) -> int:
        """Frames that bursts sent to a switch port by PacketOut."""
        return sum(
            int(each.get("frames_sent") or 0)
            for each in self._ended
            if each.get("counts_as") == "burst" and self._target(each) == (port.node, port.number)
        )

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

    def _dropped_by(self, kind: str, switch: str) -> int | None:
        """Packets that impairments of a kind dropped in a switch; None: there was no impairment."""
        found = [
            int(each.get("dropped") or 0)
            for each in self._ended
            if each.get("counts_as") == kind
            and ((each.get("details") or {}).get("switch") or self._target(each)[0]) == switch
        ]
        return sum(found) if found else None

    def _offered(self, port: Port) -> int | None:
        """Packets that the switch sent towards a port; None: it cannot be known."""
        if port.pid is not None or port.node not in self._network.switches:
            return None
        before, after = (each.switches[port.node] for each in (self._before, self._after))
        steady = {flow.identity for flow in before.flows} == {flow.identity for flow in after.flows}
        # Their flow entries come and go, and may let packets pass meanwhile.
        impaired = any(each.get("counts_as") in _FLOW_KINDS for each in self._ended)
        if not steady or impaired or before.bucket_ports != after.bucket_ports:
            return None
        number = str(port.number)
        total = self._packet_outs(port)
        old = {flow.identity: flow.packets for flow in before.flows}
        for flow in after.flows:
            total += flow.output_ports().count(number) * (flow.packets - old[flow.identity])
        for group, buckets in after.bucket_ports.items():
            gained = zip(after.bucket_packets[group], before.bucket_packets[group], strict=True)
            for ports, (new, earlier) in zip(buckets, gained, strict=True):
                total += ports.count(number) * (new - earlier)
        return total


class _QueueSums(NamedTuple):
    sent: int
    drops: int  # by the innermost queues: full, or a loss class
    filtered: int  # by what sits above them


def _sums(queues: Sequence[Queue]) -> _QueueSums:
    root = next(queue for queue in queues if queue.is_root)
    inner = [queue for queue in queues if not queue.is_root] or [root]
    drops = sum(queue.drops for queue in inner)
    return _QueueSums(sent=root.sent_packets, drops=drops, filtered=root.drops - drops)


def _gained(before: Mapping[Any, Any], after: Mapping[Any, Any], key: object) -> tuple[int, int]:
    """By how much a pair of counters has grown; one that is missing was 0."""
    old, new = before.get(key, (0, 0)), after.get(key, (0, 0))
    return new[0] - old[0], new[1] - old[1]


def _beyond_refusals(lost: int, refused: int) -> int:
    """Packets lost before a queue that its refusals cannot explain; negative: duplicates."""
    return lost if lost < 0 else max(0, lost - BATCH_PACKETS * refused)
