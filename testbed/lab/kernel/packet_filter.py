"""Drops and counts packets at a host's interface, by nftables' netdev hook, in about 0.1 ms."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.namespaces import entered
from testbed.lab.loss_model import LARGEST_CONTROL_PACKET_BYTES, Losses, LossModel

# Packet conservation adds up the counters of this name in every host: they are never reset.
_DROP_COUNTER = "dropped"
_MET_COUNTER = "met"
# A power of two, which the kernel's 32 random bits hit evenly; the largest that they can.
_RESOLUTION = 1 << 31


class Nftables:
    """libnftables in the network namespace of process `pid`; None is the present one.

    It is called in this process (its netlink socket stays in the namespace), because starting
    `nft` takes 20 ms and an impairment has to be punctual.
    """

    def __init__(self, pid: int | None) -> None:
        import nftables  # Debian's python3-nftables, bound to the system's interpreter

        with entered(pid):
            self._library: Any = nftables.Nftables()
        self._library.set_json_output(True)

    def packets(self, command: str, counter: str) -> int:
        """The packets of all counters of one name among those that a command lists."""
        text = self.run(command)
        entries = json.loads(text)["nftables"] if text else []
        counters = [entry["counter"] for entry in entries if "counter" in entry]
        return sum(int(each["packets"]) for each in counters if each["name"] == counter)

    def run(self, *commands: str) -> str:
        """Execute commands as one transaction; returns what they print.

        Raises:
            CommandError: the kernel refuses one.
        """
        status, output, error = self._library.cmd("\n".join(commands))
        if status != 0:
            raise CommandError(f"nftables: {commands[0]}: {' '.join(error.split())}")
        return str(output)


def egress_chains(table: str, interfaces: Iterable[str], *rules: str) -> Iterator[str]:
    """Commands for a table with the same rules at the egress hook of every interface.

    The hook comes before the interface's queue (Linux 5.16). Rules may name `{interface}`.
    """
    yield f"add table {table}"
    for number, name in enumerate(interfaces):
        chain = f"{table} port{number}"
        yield (
            f"add chain {chain} "
            f'{{ type filter hook egress device "{name}" priority 0 ; policy accept ; }}'
        )
        yield from (f"add rule {chain} {each.format(interface=name)}" for each in rules)


class _ArrivalTable:
    """An nftables table of its own with a chain for what arrives at one interface."""

    def __init__(self, pid: int | None, interface: str, *counters: str) -> None:
        self._taken = dict.fromkeys(counters, 0)
        self._nft = Nftables(pid)
        # Other processes may have tables in the namespace, and another of this name is an error.
        self.name = f"netdev lab{secrets.token_hex(8)}"
        self.run = self._nft.run
        self.run(
            f"create table {self.name}",
            *(f"add counter {self.name} {each}" for each in counters),
            f"add chain {self.name} arriving "
            f'{{ type filter hook ingress device "{interface}" priority 0 ; policy accept ; }}',
        )

    def take_hits(self, counter: str) -> int:
        """Packets that a counter saw since the last call; the counter itself goes on."""
        total = self._nft.packets(f"list counter {self.name} {counter}", counter)
        taken, self._taken[counter] = total - self._taken[counter], total
        return taken


class PacketFilter:
    """Loses a random share of the packets that arrive at one interface of a host.

    The kernel keeps the loss model's state from packet to packet: the state is bad while a dynamic
    set has its one possible element, which rules put in and take out at random.
    """

    def __init__(self, pid: int, interface: str) -> None:
        self._table = _ArrivalTable(pid, interface, _MET_COUNTER, _DROP_COUNTER)
        name = self._table.name
        self._table.run(
            f"add set {name} bad {{ type ether_type ; size 65535 ; flags dynamic ; }}",
            f"add chain {name} in_bad",
            f"add chain {name} in_good",
            f"add chain {name} chosen",
        )

    def lose(self, model: LossModel, *, data_ports: tuple[int, int] | None) -> None:
        """Start to lose packets, in the model's good state.

        Probabilities have a resolution of 2^-31.

        Args:
            data_ports: the first and the last port whose data is lost; None: all of IPv4 is.
        """
        name = self._table.name
        wanted = ["meta protocol ip"]
        if data_ports is not None:
            low, high = data_ports
            data = f"meta l4proto {{ tcp, udp }} meta length > {LARGEST_CONTROL_PACKET_BYTES} th"
            # Both directions of a connection count, but `goto` draws lots only once per packet.
            ports = f"{low}-{high}" if low < high else f"{low}"
            wanted = [f"{data} dport {ports}", f"{data} sport {ports}"]
        lose = f"counter name {_DROP_COUNTER} drop"
        self._table.run(
            *(f"add rule {name} arriving {each} goto chosen" for each in wanted),
            f"add rule {name} chosen counter name {_MET_COUNTER}",
            f"add rule {name} chosen meta protocol @bad goto in_bad",
            f"add rule {name} chosen goto in_good",
            *_rule(name, "in_good", model.p_good_to_bad, "add @bad { meta protocol }"),
            *_rule(name, "in_good", model.loss_good, lose),
            *_rule(name, "in_bad", model.p_bad_to_good, "delete @bad { meta protocol }"),
            *_rule(name, "in_bad", model.loss_bad, lose),
        )

    def clear(self) -> None:
        name = self._table.name
        self._table.run(
            *(f"flush chain {name} {each}" for each in ("arriving", "chosen", "in_good", "in_bad")),
            f"flush set {name} bad",
        )

    def take(self) -> Losses:
        """What it met and dropped since the last call."""
        return Losses(*(self._table.take_hits(each) for each in (_MET_COUNTER, _DROP_COUNTER)))


def _rule(table: str, chain: str, probability: float, action: str) -> list[str]:
    """A rule that acts with this probability; no rule for probability 0."""
    threshold = round(probability * _RESOLUTION)
    if threshold == 0:
        return []
    chance = f"numgen random mod {_RESOLUTION} < {threshold}" if threshold < _RESOLUTION else ""
    return [f"add rule {table} {chain} {chance} {action}"]


class DropCounter:
    """Counts what all `PacketFilter`s in the namespace of process `pid` have dropped."""

    def __init__(self, pid: int) -> None:
        self._nft = Nftables(pid)

    def total(self) -> int:
        return self._nft.packets("list counters", _DROP_COUNTER)


class ArrivalCounter:
    """Counts the frames that arrive at an interface and match, in the words of nftables.

    `pid` names the interface's namespace; None is the present one.
    """

    def __init__(self, pid: int | None, interface: str, match: str) -> None:
        self._table = _ArrivalTable(pid, interface, "seen")
        self._table.run(f"add rule {self._table.name} arriving {match} counter name seen")

    def take(self) -> int:
        """Frames that arrived since the last call."""
        return self._table.take_hits("seen")
