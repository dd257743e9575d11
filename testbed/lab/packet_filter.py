"""Loss and counting at a host's interface, by nftables' netdev hook, changed in about 0.1 ms."""

from __future__ import annotations

import itertools
import json
from typing import Any

from testbed.lab.commands import CommandError
from testbed.lab.netns import entered

# The transport's fixed data ports (its control port lies outside), and the smallest IP packet
# that carries data: a TCP acknowledgement without payload is shorter and is spared.
DATA_PORTS = (47000, 47999)
SMALLEST_DATA_PACKET_BYTES = 100
_RESOLUTION = 1_000_000


class _ArrivalTable:
    """An nftables table of its own with a chain for what arrives at one interface.

    Uses libnftables in this process (its netlink socket stays in the host's namespace), because
    starting `nft` takes 20 ms and an impairment has to be punctual.
    """

    _numbers = itertools.count()

    def __init__(self, pid: int, interface: str) -> None:
        import nftables  # Debian's python3-nftables, bound to the system's interpreter

        with entered(pid):
            self._nft: Any = nftables.Nftables()
        self._nft.set_json_output(True)
        self.name = f"netdev lab{next(self._numbers)}"
        self.command(
            f"add table {self.name}",
            f"add counter {self.name} hits",
            f"add chain {self.name} arriving "
            f'{{ type filter hook ingress device "{interface}" priority 0 ; policy accept ; }}',
        )

    def command(self, *commands: str) -> str:
        """Execute nftables commands as one transaction; return its JSON answer."""
        status, output, error = self._nft.cmd("\n".join(commands))
        if status != 0:
            raise CommandError(f"nftables: {commands[0]}: {' '.join(error.split())}")
        return str(output)

    def take_hits(self) -> int:
        """Packets that the counter saw since the last call."""
        reply = json.loads(self.command(f"reset counter {self.name} hits"))
        return sum(
            int(entry["counter"]["packets"]) for entry in reply["nftables"] if "counter" in entry
        )


class PacketFilter:
    """Drops a random share of the data packets that arrive at one interface."""

    def __init__(self, pid: int, interface: str) -> None:
        self._table = _ArrivalTable(pid, interface)
        name = self._table.name
        low, high = DATA_PORTS
        data = f"meta l4proto {{ tcp, udp }} meta length > {SMALLEST_DATA_PACKET_BYTES} th"
        # Both directions of a connection count, but `goto` draws lots only once per packet.
        self._table.command(
            f"add chain {name} lossy",
            f"add rule {name} arriving {data} dport {low}-{high} goto lossy",
            f"add rule {name} arriving {data} sport {low}-{high} goto lossy",
        )

    def drop_data(self, probability: float) -> None:
        """Start to drop data packets with this probability (resolution: one in a million)."""
        chance = f"numgen random mod {_RESOLUTION} < {round(probability * _RESOLUTION)}"
        self._table.command(f"add rule {self._table.name} lossy {chance} counter name hits drop")

    def clear(self) -> None:
        """Stop dropping."""
        self._table.command(f"flush chain {self._table.name} lossy")

    def take_dropped(self) -> int:
        """Packets dropped since the last call."""
        return self._table.take_hits()


class ArrivalCounter:
    """Counts the frames of one EtherType that arrive at an interface."""

    def __init__(self, pid: int, interface: str, ethertype: int) -> None:
        self._table = _ArrivalTable(pid, interface)
        rule = f"ether type {ethertype:#06x} counter name hits"
        self._table.command(f"add rule {self._table.name} arriving {rule}")

    def take(self) -> int:
        """Frames that arrived since the last call."""
        return self._table.take_hits()
