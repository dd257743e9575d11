"""Where the packets of a phase went: one ledger for each direction of a link, switch and host."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from testbed.verdict.gate import Finding, worst

# Shares are of at least this many packets: one odd packet on an idle link proves nothing.
LEAST_PACKETS = 1000


@dataclass(frozen=True, kw_only=True)
class _Balance:
    """What both sorts of ledgers add up; each says what that is."""

    sent: int
    down: int = 0
    hidden: int = 0
    missing_before: int = 0
    missing_after: int = 0

    @property
    def unexplained(self) -> int:
        """Packets that vanished and packets that appeared: neither makes up for the other."""
        return abs(self.missing_before) + abs(self.missing_after)

    @property
    def share(self) -> float:
        return self.unexplained / max(LEAST_PACKETS, self.sent)


@dataclass(frozen=True, kw_only=True)
class LinkLedger(_Balance):
    """One direction of a link, in packets.

    Attributes:
        offered: what the switch's flows, groups and PacketOuts sent to the port; None where that
            is not known: at a host, or where flows came and went.
        queue_drops: refused because the queue was full (or a loss class took it).
        filtered: dropped by the shaper for another reason, which should not happen.
        sent: left the shaper.
        interface_drops: an interface on the way did not accept them, which should not happen.
        delay_drops, delay_lost: in the middle of a delayed link, by accident and by the configured
            loss.
        socket_drops: found the buffer of the switch port's socket full, which should not happen.
        injected: dropped on purpose by an impairment at the receiving host.
        received: counted at the far end.
        went_down: whether an impairment took the link down meanwhile. What it then loses no
            counter shows.
        down, hidden: packets that nothing else explains, of a link that went down: so many could
            have vanished unseen.
        missing_before: offered, but neither refused by the queue nor sent; negative: more of them.
        missing_after: sent, but neither received nor counted on the way; negative: more of them.
    """

    link: str
    sender: str
    offered: int | None
    queue_drops: int
    filtered: int
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
        """Packets that parts of the emulator lost by accident, by the part in words."""
        if self.went_down:
            return {}
        return {
            "an interface on the way": self.interface_drops,
            "the middle of the delayed link": self.delay_drops,
            "the socket of the switch's port": self.socket_drops,
        }


@dataclass(frozen=True, kw_only=True)
class SwitchLedger(_Balance):
    """One switch, in packets.

    Attributes:
        switch: its name.
        arrived: packets that Open vSwitch took from its ports.
        looked_up: packets that entered its tables.
        packet_outs: frames that bursts sent to its ports.
        table_misses: packets that no flow entry matched.
        flow_drops, meter_drops: packets that a flow entry or a meter dropped.
        queue_drops: packets that the queues of its ports refused.
        sent: packets that left the shapers of its ports.
        down: packets lost at links that an impairment took down.
        hidden: how many packets could have vanished here unseen.
        missing_before: arrived, but did not enter the tables; negative: more of them.
        missing_after: entered the tables, but left nowhere; negative: more of them.
    """

    switch: str
    arrived: int
    looked_up: int
    packet_outs: int
    table_misses: int
    flow_drops: int
    meter_drops: int
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
        udp_checksum_errors: datagrams with a wrong checksum.
        udp_no_socket: datagrams to a port that nobody listened at.
    """

    host: str
    received: int
    udp_buffer_drops: int
    udp_checksum_errors: int
    udp_no_socket: int
    vanished: int = 0

    @property
    def place(self) -> str:
        return f"the kernel of {self.host}"

    @property
    def share(self) -> float:
        return abs(self.vanished) / max(LEAST_PACKETS, self.received)


@dataclass(frozen=True, kw_only=True)
class Conservation:
    """The ledgers over one phase. `quiet`: no packet moved at either reading."""

    links: list[LinkLedger]
    switches: list[SwitchLedger]
    hosts: list[HostLedger]
    quiet: bool
    duration_s: float
    lost_upcalls: int = 0

    def worst(self) -> tuple[float, str]:
        """The largest share of unexplained packets, and where."""
        ledgers: tuple[Any, ...] = (*self.links, *self.switches, *self.hosts)
        return worst([(0.0, ""), *((each.share, each.place) for each in ledgers)])

    def worst_loss(self) -> tuple[float, str]:
        """The most packets that one part of the emulator lost by accident, and where."""
        losses: list[tuple[float, str]] = [
            (lost, f"{each.place}: {part}")
            for each in self.links
            for part, lost in each.emulator_losses.items()
        ]
        upcalls = (self.lost_upcalls, "the kernel's datapath: first packets of flows")
        return worst([(0, ""), upcalls, *losses])

    def most_hidden(self) -> tuple[int, float, str]:
        """The most packets that could have vanished unseen, as a share of those sent, and where."""
        ledgers: list[LinkLedger | SwitchLedger] = [*self.links, *self.switches]
        found = ((each.hidden, each.sent, each.place) for each in ledgers)
        hidden, sent, where = max(found, default=(0, 0, ""))
        return hidden, hidden / max(LEAST_PACKETS, sent), where

    def as_json(self) -> dict[str, Any]:
        links = [_with_sums(each) | {"from": each.sender} for each in self.links]
        for record in links:
            record.pop("sender")
        return {
            "duration_s": self.duration_s,
            "drained": self.quiet,
            "lost_upcalls": self.lost_upcalls,
            "links": links,
            "switches": [_with_sums(each) for each in self.switches],
            "hosts": [asdict(each) for each in self.hosts],
        }


def _with_sums(ledger: LinkLedger | SwitchLedger) -> dict[str, Any]:
    return asdict(ledger) | {"unexplained": ledger.unexplained, "share": ledger.share}


def unexplained(ledgers: Conservation | None, unreadable: str) -> Finding:
    """The largest share of packets that nothing explains."""
    if ledgers is None or not ledgers.quiet:
        return _uncounted(ledgers, unreadable)
    share, where = ledgers.worst()
    hidden, hidden_share, place = ledgers.most_hidden()
    note = (
        f"a leak of up to {hidden} packets ({hidden_share:.2%} of the traffic) could not be seen "
        f"at {place}"
    )
    return Finding(value=share, where=where if share else "", note=note if hidden else "")


def accidents(ledgers: Conservation | None, unreadable: str) -> Finding:
    """The most that one part of the emulator lost by accident."""
    if ledgers is None or not ledgers.quiet:
        return _uncounted(ledgers, unreadable)
    lost, part = ledgers.worst_loss()
    return Finding(value=lost, where=part if lost else "")


def _uncounted(ledgers: Conservation | None, unreadable: str) -> Finding:
    moving = "packets were still moving before or after the training"
    return Finding(missing=f"no counters: {unreadable}" if ledgers is None else moving)
