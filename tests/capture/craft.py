"""Captures made by hand: a conversation's packets, crafted with scapy's layers."""

from pathlib import Path
from typing import Any

import numpy as np
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapWriter

from testbed.capture.layers import Datagram
from testbed.transport import PayloadLayout
from testbed.transport.messages import (
    PASS,
    ControlMessage,
    Hello,
    MessageType,
    Welcome,
    pack_arrivals,
)

SERVER, WORKER = "10.0.0.1", "10.0.0.2"
SESSION = 0x5E55104
CHUNK = 16


class Conversation:
    """Packets between a worker and the server, a millisecond apart."""

    def __init__(self) -> None:
        self.layout = PayloadLayout([("w", 10 * CHUNK // 4)], CHUNK)
        self.packets: list[tuple[int, bytes, int]] = []
        self.now_ns = 1_800_000_000_000_000_000
        self._next = {WORKER: 1000, SERVER: 2**32 - 20}  # one wraps around soon

    def add(self, packet: Any, *, snapshot: int = 65536) -> None:
        self.now_ns += 1_000_000
        data = bytes(Ether() / packet)
        self.packets.append((self.now_ns, data[:snapshot], len(data)))

    def datagram(self, transfer: int, sequence: int) -> None:
        header = Datagram(session=SESSION, transfer=transfer, sequence=sequence, length=CHUNK)
        self.add(IP(src=WORKER, dst=SERVER) / UDP(sport=47000, dport=47000) / header / bytes(CHUNK))

    def segment(self, source: str, stream: bytes, flags: str = "PA") -> Any:
        target = SERVER if source == WORKER else WORKER
        ports = (40000, 46999) if source == WORKER else (46999, 40000)
        sequence = self._next[source]
        self._next[source] = sequence + len(stream) + ("S" in flags)
        tcp = TCP(sport=ports[0], dport=ports[1], seq=sequence % 2**32, flags=flags)
        return IP(src=source, dst=target) / tcp / stream

    def message(self, source: str, *messages: ControlMessage) -> None:
        self.add(self.segment(source, b"".join(message.encode() for message in messages)))

    def join(self) -> None:
        self.add(self.segment(WORKER, b"", flags="S"))
        self.add(self.segment(SERVER, b"", flags="SA"))
        hello = Hello(
            session=SESSION, name="worker-1", data_port=47000, layout=self.layout.encode()
        )
        self.message(WORKER, hello.message())
        self.message(SERVER, Welcome(session=SESSION, data_port=47000).message())

    def probe(self, transfer: int, number: int) -> None:
        body = PASS.pack(number, True)
        self.message(WORKER, ControlMessage(MessageType.PROBE, transfer, body))

    def gather(self, transfer: int, lost: set[int]) -> None:
        """One transfer of two passes; the first one loses some chunks on its way."""
        count = self.layout.chunk_count
        for sequence in range(count):
            self.datagram(transfer, sequence)
        self.probe(transfer, 1)
        arrived = pack_arrivals(np.array([entry for entry in range(count) if entry not in lost]))
        self.message(SERVER, ControlMessage(MessageType.BITMAP, transfer, arrived))
        for sequence in sorted(lost):
            self.datagram(transfer, sequence)
        self.probe(transfer, 2)
        self.message(SERVER, ControlMessage(MessageType.STOP, transfer))

    def write(self, path: Path) -> Path:
        with RawPcapWriter(str(path), nano=True, linktype=1) as writer:
            writer.write_header(None)
            for time_ns, data, length in self.packets:
                seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
                writer.write_packet(data, sec=seconds, usec=nanoseconds, wirelen=length)
        return path
