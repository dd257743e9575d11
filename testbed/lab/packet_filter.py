"""Random loss at a host's interface, by nftables' netdev hook, changed in about 0.1 ms."""

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


class PacketFilter:
    """Drops a random share of the data packets that arrive at one interface.

    Uses libnftables in this process (its netlink socket stays in the host's namespace), because
    starting `nft` takes 20 ms and an impairment has to be punctual. Each filter has a table of its
    own, so that several on one interface do not disturb each other.
    """

    _numbers = itertools.count()

    def __init__(self, pid: int, interface: str) -> None:
        import nftables  # Debian's python3-nftables, bound to the system's interpreter

        with entered(pid):
            self._nft: Any = nftables.Nftables()
        self._nft.set_json_output(True)
        self._table = f"netdev lab{next(self._numbers)}"
        low, high = DATA_PORTS
        data = f"meta l4proto {{ tcp, udp }} meta length > {SMALLEST_DATA_PACKET_BYTES} th"
        # Both directions of a connection count, but `goto` draws lots only once per packet.
        self._command(
            f"add table {self._table}",
            f"add counter {self._table} dropped",
            f"add chain {self._table} lossy",
            f"add chain {self._table} arriving "
            f'{{ type filter hook ingress device "{interface}" priority 0 ; policy accept ; }}',
            f"add rule {self._table} arriving {data} dport {low}-{high} goto lossy",
            f"add rule {self._table} arriving {data} sport {low}-{high} goto lossy",
        )

    def drop_data(self, probability: float) -> None:
        """Start to drop data packets with this probability (resolution: one in a million)."""
        chance = f"numgen random mod {_RESOLUTION} < {round(probability * _RESOLUTION)}"
        self._command(f"add rule {self._table} lossy {chance} counter name dropped drop")

    def clear(self) -> int:
        """Stop dropping; return how many packets were dropped since the last call."""
        self._command(f"flush chain {self._table} lossy")
        reply = json.loads(self._command(f"reset counter {self._table} dropped"))
        return sum(
            int(entry["counter"]["packets"]) for entry in reply["nftables"] if "counter" in entry
        )

    def _command(self, *commands: str) -> str:
        status, output, error = self._nft.cmd("\n".join(commands))
        if status != 0:
            raise CommandError(f"nftables: {commands[0]}: {' '.join(error.split())}")
        return str(output)
