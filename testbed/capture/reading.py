"""Prints a capture in short rows, as the scapy layers see it: `./lab capture --read FILE`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scapy.error import Scapy_Exception
from scapy.layers.inet import IP, TCP
from scapy.packet import Packet
from scapy.utils import PcapReader

from testbed.capture.layers import Control, ControlPiece, Datagram, PortRange
from testbed.shared.input_error import InputError
from testbed.transport import EndpointConfig, Leg, PayloadLayout, ProtocolError
from testbed.transport.messages import HELLO, VERSION, Hello, MessageType
from testbed.transport.wire import DATA_PORTS

_OF_A_TRANSFER = {
    *(MessageType.PROBE, MessageType.BITMAP, MessageType.LATE_BITMAP, MessageType.STOP),
    *(MessageType.ACK, MessageType.HOLD, MessageType.ENERGY),
}
_OF_TCP = -1  # the transfer of kernel TCP's data, which has no number
_DATA = PortRange(*DATA_PORTS)


@dataclass
class Row:
    """A control message, or data of one transfer with nothing else of it between."""

    began_s: float
    source: str
    target: str
    transfer: int | None
    what: str = ""
    ended_s: float = 0.0
    packets: int = 0
    chunks: tuple[int, int] = (0, 0)

    def text(self, names: dict[str, str], began_s: float) -> str:
        """The row; times in milliseconds."""
        ends = f"{names.get(self.source, self.source)} > {names.get(self.target, self.target)}"
        transfer = "" if self.transfer in (None, _OF_TCP) else str(self.transfer)
        what = self.what
        if self.packets:
            kind = "segments" if self.transfer == _OF_TCP else "datagrams"
            what = f"{self.packets:,} {kind} in {(self.ended_s - self.began_s) * 1e3:.3f} ms"
            if self.transfer != _OF_TCP:
                what += f", chunks {self.chunks[0]} to {self.chunks[1]}"
        return f"{(self.began_s - began_s) * 1e3:12.3f}  {ends:<28} {transfer:>8}  {what}"


def show(path: Path, *, transfer: int | None = None) -> None:
    """Print a capture's rows, or those of one transfer; InputError where there are none."""
    names: dict[str, str] = {}
    try:
        with PcapReader(str(path)) as packets:
            rows = sorted(_rows(packets, names), key=lambda row: row.began_s)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (Scapy_Exception, EOFError) as error:
        raise InputError(f"{path}: no capture: {error}") from None
    if not rows:
        low, high = DATA_PORTS
        ports = f"{EndpointConfig.control_port}, {low} to {high}"
        raise InputError(f"{path}: no packet is ours (TCP and UDP ports {ports})")
    chosen = [row for row in rows if transfer in (None, row.transfer)]
    if not chosen:
        numbers = [row.transfer for row in rows if row.transfer not in (None, _OF_TCP)]
        valid = f"{min(numbers)} to {max(numbers)}" if numbers else "none, it has no transfers"
        raise InputError(f"{path}: transfer {transfer} is not in it; valid: {valid}")
    if transfer is not None:
        print(f"transfer {transfer}: round {transfer // 2}, {Leg(transfer % 2).name.lower()}")
    print(f"{'ms':>12}  {'from > to':<28} {'transfer':>8}")
    for row in chosen:
        print(row.text(names, chosen[0].began_s))


def _rows(packets: Any, names: dict[str, str]) -> Iterator[Row]:
    """Rows in the order in which they end; `names` learns hosts by address."""
    runs: dict[tuple[str, str], Row] = {}  # by source and target: data that may go on
    for packet in packets:
        if IP not in packet:
            continue
        ends, time_s = (packet[IP].src, packet[IP].dst), float(packet.time)
        if Datagram in packet or (TCP in packet and _is_data(packet[TCP])):
            number = packet[Datagram].transfer if Datagram in packet else _OF_TCP
            chunk = packet[Datagram].sequence if Datagram in packet else 0
            run = runs.get(ends)
            if run is None or run.transfer != number:
                if run is not None:
                    yield run
                run = runs[ends] = Row(time_s, *ends, number, chunks=(chunk, chunk))
            run.packets += 1
            run.ended_s = time_s
            run.chunks = min(run.chunks[0], chunk), max(run.chunks[1], chunk)
        elif Control in packet:
            for flow in (ends, ends[::-1]):  # a message ends the data before it
                if (ended := runs.pop(flow, None)) is not None:
                    yield ended
            yield from _messages(packet[Control], time_s, ends, names)
        elif ControlPiece in packet:
            yield Row(time_s, *ends, None, "control without a message's beginning")
    yield from runs.values()


def _is_data(segment: Packet) -> bool:
    is_ours = segment.dport == _DATA or segment.sport == _DATA
    return is_ours and len(segment.payload) > 0


def _codec(hello: bytes) -> str:
    """Names the codec of a HELLO's layout; empty where it has none that can be read."""
    with suppress(ProtocolError):
        return PayloadLayout.decode(Hello.parse(hello).layout).codec
    return ""


def _messages(
    message: Packet, time_s: float, ends: tuple[str, str], names: dict[str, str]
) -> Iterator[Row]:
    while isinstance(message, Control):
        codec = ""
        if message.version != VERSION or message.reserved:
            yield Row(time_s, *ends, None, f"{len(message)} bytes within a message")
            return
        if message.type == MessageType.HELLO and len(message.body) >= HELLO.size:
            _, _, name_bytes, *_ = HELLO.unpack_from(message.body)
            peer = message.body[HELLO.size :][:name_bytes].decode(errors="replace")
            # From the network: nothing that a terminal would interpret.
            names[ends[0]] = "".join(sign if sign.isprintable() else "?" for sign in peer[:64])
            names.setdefault(ends[1], "server")
            codec = _codec(message.body)
        is_ours = message.type in set(MessageType)
        name = MessageType(message.type).name if is_ours else f"type {message.type}"
        what = f"{name}, {message.length} bytes" if message.length else name
        what += f", codec {codec}" if codec else ""
        transfer = message.transfer if message.type in _OF_A_TRANSFER else None
        yield Row(time_s, *ends, transfer, what)
        message = message.payload
