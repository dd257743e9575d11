"""Loss and counting at a host's interface, by nftables' netdev hook, changed in about 0.1 ms."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from typing import Any

from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.namespaces import entered
from testbed.lab.loss_model import DATA_PORTS, SMALLEST_DATA_PACKET_BYTES, LossModel

# Packet conservation adds up the counters of this name in every host: they are never reset.
DROP_COUNTER = "dropped"
_RESOLUTION = 1_000_000


class _ArrivalTable:
    """An nftables table of its own with a chain for what arrives at one interface.

    Uses libnftables in this process (its netlink socket stays in the host's namespace), because
    starting `nft` takes 20 ms and an impairment has to be punctual.
    """

    _numbers = itertools.count()

    def __init__(self, pid: int | None, interface: str, counter: str) -> None:
        import nftables  # Debian's python3-nftables, bound to the system's interpreter

        self._counter = counter
        self._taken = 0
        with entered(pid) if pid is not None else nullcontext():
            self._nft: Any = nftables.Nftables()
        self._nft.set_json_output(True)
        self.name = f"netdev lab{next(self._numbers)}"
        self.command(
            f"add table {self.name}",
            f"add counter {self.name} {counter}",
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
        """Packets that the counter saw since the last call; the counter itself goes on."""
        reply = json.loads(self.command(f"list counter {self.name} {self._counter}"))
        total = sum(
            int(entry["counter"]["packets"]) for entry in reply["nftables"] if "counter" in entry
        )
        taken, self._taken = total - self._taken, total
        return taken


class PacketFilter:
    """Loses a random share of the packets that arrive at one interface of a host.

    The loss model's state is kept in the kernel, from packet to packet: it is bad while a dynamic
    set has its one possible element, which rules put in and take out at random.
    """

    def __init__(self, pid: int, interface: str) -> None:
        self._table = _ArrivalTable(pid, interface, DROP_COUNTER)
        name = self._table.name
        self._table.command(
            f"add set {name} bad {{ type ether_type ; size 65535 ; flags dynamic ; }}",
            f"add chain {name} in_bad",
            f"add chain {name} in_good",
            f"add chain {name} chosen",
        )

    def drop_data(self, probability: float) -> None:
        """Start to lose data packets independently with this probability."""
        self.lose(LossModel(loss_good=probability), data_only=True)

    def lose(self, model: LossModel, *, data_only: bool) -> None:
        """Start to lose packets (of data only, or all of IPv4), in the model's good state.

        Probabilities have a resolution of one in a million.
        """
        name = self._table.name
        low, high = DATA_PORTS
        data = f"meta l4proto {{ tcp, udp }} meta length > {SMALLEST_DATA_PACKET_BYTES} th"
        # Both directions of a connection count, but `goto` draws lots only once per packet.
        wanted = (
            [f"{data} dport {low}-{high}", f"{data} sport {low}-{high}"]
            if data_only
            else ["meta protocol ip"]
        )
        lose = f"counter name {DROP_COUNTER} drop"
        self._table.command(
            *(f"add rule {name} arriving {each} goto chosen" for each in wanted),
            f"add rule {name} chosen meta protocol @bad goto in_bad",
            f"add rule {name} chosen goto in_good",
            *_rule(name, "in_good", model.p_good_to_bad, "add @bad { meta protocol }"),
            *_rule(name, "in_good", model.loss_good, lose),
            *_rule(name, "in_bad", model.p_bad_to_good, "delete @bad { meta protocol }"),
            *_rule(name, "in_bad", model.loss_bad, lose),
        )

    def clear(self) -> None:
        """Stop losing."""
        name = self._table.name
        self._table.command(
            *(f"flush chain {name} {each}" for each in ("arriving", "chosen", "in_good", "in_bad")),
            f"flush set {name} bad",
        )

    def take_dropped(self) -> int:
        """Packets lost since the last call."""
        return self._table.take_hits()


def _rule(table: str, chain: str, probability: float, action: str) -> list[str]:
    """A rule that acts with this probability; none if it never does."""
    threshold = round(probability * _RESOLUTION)
    if threshold == 0:
        return []
    chance = f"numgen random mod {_RESOLUTION} < {threshold}" if threshold < _RESOLUTION else ""
    return [f"add rule {table} {chain} {chance} {action}"]


class ArrivalCounter:
    """Counts the frames of one EtherType that arrive at an interface.

    `pid` names the interface's namespace; None is the present one.
    """

    def __init__(self, pid: int | None, interface: str, ethertype: int) -> None:
        self._table = _ArrivalTable(pid, interface, "seen")
        rule = f"ether type {ethertype:#06x} counter name seen"
        self._table.command(f"add rule {self._table.name} arriving {rule}")

    def take(self) -> int:
        """Frames that arrived since the last call."""
        return self._table.take_hits()


class DatagramCounter:
    """Counts the UDP datagrams from one address to one port that arrive at an interface."""

    def __init__(self, pid: int, interface: str, *, source: str, port: int) -> None:
        self._table = _ArrivalTable(pid, interface, "seen")
        rule = f"ip saddr {source} udp dport {port} counter name seen"
        self._table.command(f"add rule {self._table.name} arriving {rule}")

    def take(self) -> int:
        """Datagrams that arrived since the last call."""
        return self._table.take_hits()
