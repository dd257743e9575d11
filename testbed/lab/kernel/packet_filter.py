"""Drops and counts packets at a host's interface, by nftables' netdev hook, in about 0.1 ms."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from testbed.lab.kernel import netlink
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.namespaces import entered
from testbed.lab.loss_table import LARGEST_CONTROL_PACKET_BYTES, Losses, LossTable

# Packet conservation adds up the counters of this name in every host: they are never reset.
_DROP_COUNTER = "dropped"
_MET_COUNTER = "met"
# linux/netfilter/nf_tables.h: the request for objects, and attributes of a counter's object.
_NETFILTER, _GET_OBJECT = 12, 10 << 8 | 19
_TABLE, _NAME, _DATA, _PACKETS = 1, 2, 4, 2
_OF_NETDEV = struct.pack("=BBH", 5, 0, 0)


class Nftables:
    """libnftables in the network namespace of process `pid`; None is the present one."""

    # In this process, because starting `nft` takes 20 ms and an impairment has to be punctual.

    def __init__(self, pid: int | None) -> None:
        import nftables  # Debian's python3-nftables, bound to the system's interpreter

        with entered(pid):
            self._library: Any = nftables.Nftables()

    def run(self, *commands: str) -> str:
        """Execute commands as one transaction; returns what they print."""
        status, output, error = self._library.cmd("\n".join(commands))
        if status != 0:
            raise CommandError(f"nftables: {commands[0]}: {' '.join(error.split())}")
        return str(output)


def egress_chains(table: str, interfaces: Iterable[str], *rules: str) -> Iterator[str]:
    """Write a table with the same rules at the egress hook of every interface."""
    yield f"add table {table}"
    for number, name in enumerate(interfaces):
        chain = f"{table} port{number}"
        yield (
            f"add chain {chain} "
            f'{{ type filter hook egress device "{name}" priority 0 ; policy accept ; }}'
        )
        yield from (f"add rule {chain} {rule.format(interface=name)}" for rule in rules)


# Elements of a set in one message: an ordinary user's socket sends 8000, and 65 536 are refused.
_AT_ONCE = 2000


class FilterCounters:
    """Reads nftables' counters of process `pid`'s network namespace."""

    # libnftables would fetch all elements of all sets with them, in some 100 ms.

    def __init__(self, pid: int | None) -> None:
        self._socket = netlink.connect(_NETFILTER, pid)

    def dropped(self) -> int:
        """Count packets that all `PacketFilter`s of the namespace have dropped."""
        return self.packets(_DROP_COUNTER)

    def packets(self, name: str, table: str = "") -> int:
        """Add up the packets of all counters of one name, in one table or in all."""
        total = 0
        for _, content in netlink.dump(self._socket, _GET_OBJECT, _OF_NETDEV):
            counter = netlink.values(content, len(_OF_NETDEV))
            of_table = netlink.string(counter[_TABLE])
            if netlink.string(counter[_NAME]) == name and table in ("", of_table):
                total += int.from_bytes(netlink.values(counter[_DATA])[_PACKETS], "big")
        return total


class _ArrivalTable:
    """An nftables table of its own with a chain for what arrives at one interface."""

    def __init__(self, pid: int | None, interface: str, *counters: str) -> None:
        self._taken = dict.fromkeys(counters, 0)
        self._counters = FilterCounters(pid)
        # Other processes may have tables in the namespace, and another of this name is an error.
        self._short_name = f"lab{secrets.token_hex(8)}"
        self.name = f"netdev {self._short_name}"
        self.run = Nftables(pid).run
        self.run(
            f"create table {self.name}",
            *(f"add counter {self.name} {counter}" for counter in counters),
            f"add chain {self.name} arriving "
            f'{{ type filter hook ingress device "{interface}" priority 0 ; policy accept ; }}',
        )

    def take_hits(self, counter: str) -> int:
        """Return a counter's packets since the last call; the counter itself goes on."""
        total = self._counters.packets(counter, self._short_name)
        taken, self._taken[counter] = total - self._taken[counter], total
        return taken


class PacketFilter:
    """Loses those packets of a table that arrive at one interface of a host."""

    # The kernel counts packets from the begin of each loss on, and looks the count up in a set.
    # Loading the set takes up to 0.2 s, which the constructor does.

    def __init__(self, pid: int, interface: str, losses: LossTable) -> None:
        self._table = _ArrivalTable(pid, interface, _MET_COUNTER, _DROP_COUNTER)
        self._losses = losses
        name = self._table.name
        self._table.run(
            f"add set {name} lost {{ typeof numgen inc mod 2 ; }}", f"add chain {name} chosen"
        )
        lost = losses.lost.tolist()
        for first in range(0, len(lost), _AT_ONCE):
            some = ", ".join(map(str, lost[first : first + _AT_ONCE]))
            self._table.run(f"add element {name} lost {{ {some} }}")

    def lose(self, *, data_ports: tuple[int, int] | None, occurrence: int = 0) -> None:
        """Start to lose packets of an occurrence on these data ports; None: all of IPv4."""
        name = self._table.name
        matches = ["meta protocol ip"]
        if data_ports is not None:
            low, high = data_ports
            data = f"meta l4proto {{ tcp, udp }} meta length > {LARGEST_CONTROL_PACKET_BYTES} th"
            # Both directions of a connection count, but `goto` counts only once per packet.
            ports = f"{low}-{high}" if low < high else f"{low}"
            matches = [f"{data} dport {ports}", f"{data} sport {ports}"]
        first, period = self._losses.span(occurrence)
        self._table.run(
            *(f"add rule {name} arriving {match} goto chosen" for match in matches),
            f"add rule {name} chosen counter name {_MET_COUNTER}",
            f"add rule {name} chosen numgen inc mod {period} offset {first} @lost "
            f"counter name {_DROP_COUNTER} drop",
        )

    def clear(self) -> None:
        name = self._table.name
        self._table.run(f"flush chain {name} arriving", f"flush chain {name} chosen")

    def take(self) -> Losses:
        return Losses(*map(self._table.take_hits, (_MET_COUNTER, _DROP_COUNTER)))


class ArrivalCounter:
    """Counts the frames that arrive at an interface and match, in the words of nftables."""

    # `ends_here`: packet sockets, such as those of a switch in user space, have the frames by then;
    # and the kernel would count as a drop of the interface what no protocol of its own takes.

    def __init__(
        self, pid: int | None, interface: str, match: str, *, ends_here: bool = False
    ) -> None:
        self._table = _ArrivalTable(pid, interface, "seen")
        then = " drop" if ends_here else ""
        self._table.run(f"add rule {self._table.name} arriving {match} counter name seen{then}")

    def take(self) -> int:
        return self._table.take_hits("seen")
