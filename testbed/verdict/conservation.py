"""Packet conservation: on every directed link, sent = received + drops that somebody counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from testbed.lab.kernel.link_counters import NamespaceCounters
from testbed.lab.network import LabInfo, LinkEnds, Port
from testbed.verdict.counters import Counters, lasting
from testbed.verdict.gates import Finding, worst

# The equations join counters that are kept in different places, so that a packet that vanishes
# uncounted shows. Each is judged by itself: a packet too many does not make up for one that
# vanished.
# Link:    offered by flows and bursts = refused by the queue + sent by the shaper
#          sent by the shaper = arrived at the far end + drops that were counted on the way
# Switch:  arrived = looked up in the first table
#          looked up + bursts = sent by all shapers + refused by all queues + table misses
#                                   + dropped by flows
# Host:    came to the IP layer = delivered + counted as an error
#
# What cannot be known is bounded, and the ledger has the bound (`hidden`):
# - A link that goes down loses what waits in its queues and what is sent to it, and no counter
#   shows either. So whatever vanishes at such a link, or at a switch at its ends, counts as lost.
# - When routes change, Open vSwitch adds up what its cache has forwarded up to half a second later,
#   by the entries that there are then: some of that run's misses may have been forwarded.
_WORD = 1 << 32
# What an IP layer counts of packets that it does not deliver (RFC 4293).
_NOT_DELIVERED = (
    *("InHdrErrors", "InAddrErrors", "InUnknownProtos", "InDiscards"),
    *("ForwDatagrams", "ReasmReqds"),
)
# Shares are of at least this many packets: one odd packet on an idle link proves nothing.
LEAST_PACKETS = 1000


@dataclass(frozen=True, kw_only=True)
class _Ledger:
    sent: int
    hidden: int = 0
    missing_before: int = 0
    missing_after: int = 0

    @property
    def unexplained(self) -> int:
        # Packets that vanished and packets that appeared: neither makes up for the other.
        return abs(self.missing_before) + abs(self.missing_after)

    @property
    def share(self) -> float:
        return self.unexplained / max(LEAST_PACKETS, self.sent)


@dataclass(frozen=True, kw_only=True)
class LinkLedger(_Ledger):
    """One direction of a link, in packets.

    Attributes:
        offered: what the switch's flows, groups and bursts sent to the port; None where that
            is not known: at a host, or where flows came and went.
        queue_drops: refused because the queue was full (or a loss class took it).
        sent: left the shaper.
        interface_drops: an interface on the way did not accept them, which should not happen.
        delay_drops, delay_lost: in the middle of a delayed link, by accident and by the configured
            loss.
        socket_drops: found the buffer of the switch port's socket full, which should not happen.
        injected: dropped on purpose by an impairment where they arrived.
        received: counted at the far end.
        went_down: whether an impairment took the link down meanwhile. What it then loses no
            counter shows.
        hidden: packets that nothing else explains, of a link that went down: so many could have
            vanished unseen.
        missing_before: offered, but neither refused by the queue nor sent; negative: more of them.
        missing_after: sent, but neither received nor counted on the way; negative: more of them.
    """

    link: str
    sender: str
    offered: int | None
    queue_drops: int
    interface_drops: int
    delay_drops: int
    delay_lost: int
    socket_drops: int
    injected: int
    received: int
    went_down: bool = False

    @property
    def place(self) -> str:
        return f"{self.link} from {self.sender}"

    @property
    def emulator_losses(self) -> dict[str, int]:
        losses = {"the socket of the switch's port": self.socket_drops}
        if self.went_down:  # which fills no socket
            return losses
        return losses | {
            "an interface on the way": self.interface_drops,
            "the middle of the delayed link": self.delay_drops,
        }


@dataclass(frozen=True, kw_only=True)
class SwitchLedger(_Ledger):
    """One switch, in packets.

    Attributes:
        switch: its name.
        arrived: packets that Open vSwitch took from its ports.
        packet_outs: frames that bursts sent to its ports.
        table_misses: packets that no flow entry matched.
        dropped: packets that flow entries dropped.
        queue_drops: packets that the queues of its ports refused.
        sent: packets that left the shapers of its ports.
        hidden: how many packets could have vanished here unseen.
        missing_before: arrived, but did not enter the tables; negative: more of them.
        missing_after: entered the tables, but left nowhere; negative: more of them.
    """

    switch: str
    arrived: int
    packet_outs: int
    table_misses: int
    dropped: int
    queue_drops: int

    @property
    def place(self) -> str:
        return f"switch {self.switch}"


@dataclass(frozen=True, kw_only=True)
class HostLedger:
    """One host, in packets.

    Attributes:
        host: its name.
        received: packets that came to its IP layer.
        vanished: those of them that it neither delivered, nor put together with others, nor counted
            as an error: a packet filter dropped them.
        udp_buffer_drops: datagrams that found a socket's buffer full.
    """

    host: str
    received: int
    udp_buffer_drops: int
    vanished: int = 0

    @property
    def place(self) -> str:
        return f"the kernel of {self.host}"

    @property
    def share(self) -> float:
        return abs(self.vanished) / max(LEAST_PACKETS, self.received)


@dataclass(frozen=True, kw_only=True)
class Conservation:
    """The ledgers over one phase. `idle`: no packet moved at either reading."""

    links: list[LinkLedger]
    switches: list[SwitchLedger]
    hosts: list[HostLedger]
    idle: bool
    duration_s: float
    lost_upcalls: int = 0

    def worst(self) -> tuple[float, str]:
        ledgers: tuple[Any, ...] = (*self.links, *self.switches, *self.hosts)
        return worst([(0.0, ""), *((ledger.share, ledger.place) for ledger in ledgers)])

    def as_json(self) -> dict[str, Any]:
        links, switches = (
            [asdict(one) | {"unexplained": one.unexplained, "share": one.share} for one in ledgers]
            for ledgers in (self.links, self.switches)
        )
        for record in links:
            record["from"] = record.pop("sender")
        return {
            "duration_s": self.duration_s,
            "drained": self.idle,
            "lost_upcalls": self.lost_upcalls,
            "links": links,
            "switches": switches,
            "hosts": [asdict(host) for host in self.hosts],
        }


def close(
    network: LabInfo,
    before: Counters,
    after: Counters,
    events: Sequence[Mapping[str, Any]],
    *,
    whole_batches: bool,
) -> Conservation:
    """Make the ledgers of what happened between two readings."""
    gained = _Differences(network, before, after, events)
    switches = [gained.switch(name) for name in network.switches]
    refused = sum(switch.queue_drops for switch in switches)
    if refused and not whole_batches:
        # Each refusal then stands for up to 32 packets (see `testbed.lab.datapath`).
        raise ValueError(
            f"queues refused {refused} packets of Open vSwitch, which gives up the rest of their "
            "batches uncounted; to count them takes Linux 5.16"
        )
    return Conservation(
        links=list(map(gained.link, gained.ways)),
        switches=switches,
        hosts=list(map(gained.host, network.hosts)),
        idle=before.idle and after.idle,
        duration_s=after.at_s - before.at_s,
        lost_upcalls=after.lost_upcalls - before.lost_upcalls,
    )


class _Way(NamedTuple):
    link: LinkEnds
    sender: Port
    receiver: Port

    def is_target(self, event: Mapping[str, Any]) -> bool:
        ends = self.sender.node, self.receiver.node
        return event.get("target") in ("->".join(ends), self.receiver.node)


class _Queue(NamedTuple):
    sent: int
    drops: int  # by the innermost queues: full, or a loss class
    filtered: int  # by what sits above them


class _Differences:
    def __init__(
        self,
        network: LabInfo,
        before: Counters,
        after: Counters,
        events: Sequence[Mapping[str, Any]],
    ) -> None:
        self._network, self._before, self._after = network, before, after
        self._ends_of_impairments = [event for event in events if event.get("action") == "end"]
        self.ways = [
            _Way(link, *ends)
            for link in network.links
            for ends in ((link.first, link.second), (link.second, link.first))
        ]
        downs = [event for event in events if event.get("counts_as") == "link-down"]
        self._went_down = {way.link.name for way in self.ways if any(map(way.is_target, downs))}

    def link(self, way: _Way) -> LinkLedger:
        link, sender, receiver = way
        queue = self._queue(sender)
        delay_drops, delay_lost = _gained(
            self._before.delayed, self._after.delayed, (link.name, sender.node)
        )
        interface_drops, at_entry = self._interface_drops(way, delay_drops)
        arrived, socket_drops = self._arrived(way)
        if receiver.pid is not None:
            arrived -= at_entry  # the host counts what its interface did not accept as received
        injected = self._injected(way)
        went_down = link.name in self._went_down
        # An interface that is down refuses packets before its shaper, too.
        on_the_way = delay_drops + delay_lost + injected + (0 if went_down else interface_drops)
        offered, exact = self._offered(way)
        missing_before = self._missing_before(way)
        missing_after = queue.sent - on_the_way - arrived
        hidden = 0
        if went_down:
            hidden = max(0, missing_before) + max(0, missing_after)
            missing_before, missing_after = min(0, missing_before), min(0, missing_after)
        return LinkLedger(
            link=link.name,
            sender=sender.node,
            offered=offered if exact else None,
            queue_drops=queue.drops,
            sent=queue.sent,
            interface_drops=interface_drops,
            delay_drops=delay_drops,
            delay_lost=delay_lost,
            socket_drops=socket_drops,
            injected=injected,
            received=arrived - socket_drops,
            went_down=went_down,
            hidden=hidden,
            missing_before=missing_before,
            missing_after=missing_after,
        )

    def switch(self, name: str) -> SwitchLedger:
        outgoing = [way for way in self.ways if way.sender.node == name]
        arrived = by_links_down = 0
        for way in self.ways:
            if way.receiver.node == name:
                packets, socket_drops = self._arrived(way)
                arrived += packets - socket_drops
                if way.link.name in self._went_down:
                    by_links_down += packets - socket_drops
        queues = [self._queue(way.sender) for way in outgoing]
        queue = _Queue(*map(sum, zip(*queues, strict=True)))
        before, after = self._before.switches[name], self._after.switches[name]
        misses = (after.lookups - after.matched) - (before.lookups - before.matched)
        looked_up = after.entered - before.entered
        packet_outs = sum(map(self._burst_frames, outgoing))
        old = {flow.identity: flow.packets for flow in before.flows}
        dropped = sum(
            flow.packets - old.get(flow.identity, 0) for flow in after.flows if flow.drops
        )
        offered = looked_up + packet_outs - misses - dropped
        missing = offered - queue.sent - queue.drops - queue.filtered  # the link's business
        forwarded = misses if self._went_down else 0  # at most: routes have changed
        missing = max(missing, min(0, missing + forwarded))
        lost_before = max(0, min(arrived - looked_up, by_links_down))
        lost_after = self._lost_with_links(outgoing, missing)
        return SwitchLedger(
            switch=name,
            arrived=arrived,
            packet_outs=packet_outs,
            table_misses=misses,
            dropped=dropped,
            queue_drops=queue.drops,
            sent=queue.sent,
            hidden=forwarded + lost_before + lost_after,
            missing_before=arrived - looked_up - lost_before,
            missing_after=missing - lost_after,
        )

    def host(self, name: str) -> HostLedger:
        pid = self._network.hosts[name].pid

        def gained(key: str) -> int:
            old, new = self._namespace(pid)
            return new.protocols.get(key, 0) - old.protocols.get(key, 0)

        # Fragments become one packet; the errors are counted, and so is what passes through.
        others = sum(gained(f"Ip.{key}") for key in _NOT_DELIVERED) - gained("Ip.ReasmOKs")
        return HostLedger(
            host=name,
            received=gained("Ip.InReceives"),
            vanished=gained("Ip.InReceives") - gained("Ip.InDelivers") - others,
            udp_buffer_drops=gained("Udp.RcvbufErrors"),
        )

    # Parts of the equations

    def _namespace(self, pid: int | None) -> tuple[NamespaceCounters, NamespaceCounters]:
        return self._before.namespaces[pid], self._after.namespaces[pid]

    def _interface(self, pid: int | None, interface: str, what: str) -> int:
        old, new = self._namespace(pid)
        before, after = old.interfaces[interface], new.interfaces[interface]
        return int(getattr(after, what) - getattr(before, what))

    def _interface_drops(self, way: _Way, delay_drops: int) -> tuple[int, int]:
        """Count packets that interfaces on the way refused; those of them that the last one did."""
        # A veth that does not accept a packet counts it as a drop of its own, and so does its peer.
        link, sender, receiver = way
        leaving = self._interface(sender.pid, sender.interface, "send_drops")
        if link.middle is None:
            at_entry, drops = leaving, leaving
        else:
            inner = link.middle[0 if receiver is link.first else 1]
            at_entry = self._interface(None, inner, "send_drops")
            # Since Linux 6.7 a relay is notified of them, and counts them among its own.
            notified = self._network.delayed_by == "relay"
            drops = leaving + max(0, at_entry - (delay_drops if notified else 0))
        refused = self._interface(receiver.pid, receiver.interface, "receive_drops")
        if receiver.pid is None:  # nothing else is counted there
            drops += max(0, refused - at_entry)
        return drops, min(at_entry, refused)

    def _queue(self, port: Port) -> _Queue:
        old, new = (counters.queues[port.interface] for counters in self._namespace(port.pid))
        sent = drops = all_drops = 0
        for earlier, later in zip(old, new, strict=True):
            refused = grown(earlier.drops, later.drops)
            if later.is_root:
                sent = grown(earlier.sent_packets, later.sent_packets)
                all_drops = refused
            # A shaper below the shaper counts what its queues refuse, too.
            if (not later.is_root and later.kind != "htb") or len(new) == 1:
                drops += refused
        return _Queue(sent=sent, drops=drops, filtered=all_drops - drops)

    def _arrived(self, way: _Way) -> tuple[int, int]:
        """Count packets that came to the far end of a link; those that found its socket full."""
        port = way.receiver
        if port.pid is None and self._network.datapath == "kernel":
            return self._interface(None, port.interface, "received") - self._injected(way), 0
        if port.pid is None:
            return _gained(self._before.sockets, self._after.sockets, port.interface)
        old, new = self._namespace(port.pid)
        packets = sum(
            new.protocols.get(key, 0) - old.protocols.get(key, 0)
            for key in ("Ip.InReceives", "Ip6InReceives")
        )
        packets -= new.interfaces["lo"].received - old.interfaces["lo"].received
        # Frames of unknown EtherType, such as those of bursts, count as receive drops.
        return packets + self._interface(port.pid, port.interface, "receive_drops"), 0

    def _injected(self, way: _Way) -> int:
        host = way.receiver.node
        if way.receiver.pid is not None:  # by rules with a counter
            return self._after.filter_drops.get(host, 0) - self._before.filter_drops.get(host, 0)
        # A switch: by an XDP program, whose owner alone can read its counter.
        return self._sum("loss", "dropped", way)

    def _offered(self, way: _Way) -> tuple[int, bool]:
        """Count packets that a switch's tables sent to a port; false if there were more."""
        # Entries that came or went meanwhile took packets that cannot be told.
        switch, port = way.sender.node, way.sender.number
        if switch not in self._network.switches:
            return 0, False
        before, after = self._before.switches[switch], self._after.switches[switch]
        total = self._burst_frames(way)
        pairs = lasting(before.flows, after.flows)
        for old, new in pairs:
            total += new.ports.count(port) * (new.packets - old.packets)
        if before.bucket_ports != after.bucket_ports:
            return total, False
        for group, buckets in after.bucket_ports.items():
            gained = zip(after.bucket_packets[group], before.bucket_packets[group], strict=True)
            for ports, (late, early) in zip(buckets, gained, strict=True):
                total += ports.count(port) * (late - early)
        return total, len(pairs) == len(before.flows) == len(after.flows)

    def _missing_before(self, way: _Way) -> int:
        queue, (offered, exact) = self._queue(way.sender), self._offered(way)
        missing = offered - queue.sent - queue.drops
        # Where entries came and went, more was offered: what is missing then is the least.
        return missing if exact else max(queue.filtered, missing)

    def _lost_with_links(self, outgoing: Sequence[_Way], missing: int) -> int:
        """Count what went missing at links that went down: what the others do not explain."""
        others = [way for way in outgoing if way.link.name not in self._went_down]
        if len(others) == len(outgoing):
            return 0
        elsewhere = sum(
            self._missing_before(way) - self._queue(way.sender).filtered for way in others
        )
        return max(0, missing - max(0, elsewhere))

    # Impairments, by where they acted

    def _burst_frames(self, way: _Way) -> int:
        return self._sum("burst", "frames_sent", way)

    def _sum(self, kind: str, key: str, way: _Way) -> int:
        return sum(
            int(event.get(key) or 0)
            for event in self._ends_of_impairments
            if event.get("counts_as") == kind and way.is_target(event)
        )


def grown(before: int, after: int) -> int:
    """The growth of a counter, which may be of 32 bits and have begun again at 0."""
    # A queue's drops are one (struct gnet_stats_queue). One that is smaller for another reason,
    # since its queue was replaced, has shrunk.
    wrapped = before - after > _WORD // 2 and before < _WORD
    return after - before + (_WORD if wrapped else 0)


def _gained(before: Mapping[Any, Any], after: Mapping[Any, Any], key: object) -> tuple[int, int]:
    """The growth of a pair of counters; one that is missing was 0."""
    old, new = before.get(key, (0, 0)), after.get(key, (0, 0))
    return grown(old[0], new[0]), grown(old[1], new[1])


# The gates


def unexplained(ledgers: Conservation | None, unreadable: str) -> Finding:
    if ledgers is None or not ledgers.idle:
        return _uncounted(ledgers, unreadable)
    share, where = ledgers.worst()
    most: Any = max((*ledgers.links, *ledgers.switches), key=lambda ledger: ledger.hidden)
    note = (
        f"a leak of up to {most.hidden} packets "
        f"({most.hidden / max(LEAST_PACKETS, most.sent):.2%} of the traffic) could not be seen "
        f"at {most.place}"
    )
    return Finding(value=share, where=where if share else "", note=note if most.hidden else "")


def emulator_losses(ledgers: Conservation | None, unreadable: str) -> Finding:
    if ledgers is None or not ledgers.idle:
        return _uncounted(ledgers, unreadable)
    losses: list[tuple[float, str]] = [
        (lost, f"{link.place}: {part}")
        for link in ledgers.links
        for part, lost in link.emulator_losses.items()
    ]
    upcalls = (ledgers.lost_upcalls, "the kernel's datapath: first packets of flows")
    lost, part = worst([(0, ""), upcalls, *losses])
    return Finding(value=lost, where=part if lost else "")


def _uncounted(ledgers: Conservation | None, unreadable: str) -> Finding:
    moving = "packets were still moving before or after the training"
    return Finding(missing=f"no counters: {unreadable}" if ledgers is None else moving)
