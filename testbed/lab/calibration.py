"""Measures every host's path before training: what the emulator really delivers.

One process holds sockets in both namespaces, and the kernel's receive timestamps do the timing, so
that the measurement does not depend on when this process is scheduled.
"""

from __future__ import annotations

import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from testbed.lab.commands import CommandError
from testbed.lab.netns import socket_in
from testbed.lab.network import HostInfo
from testbed.lab.shaping import ETHERNET_FRAME_BYTES

_SO_TIMESTAMPNS = 35
_PAYLOAD_BYTES = ETHERNET_FRAME_BYTES - 14 - 20 - 8
_RATE_TIME_S = 0.02
_MOST_RATE_TRIALS = 8
_GOOD_SHARE = 0.99
_ROUND_TRIPS = 20
_ANSWER_TIMEOUT_S = 0.5


@dataclass(frozen=True, kw_only=True)
class PathCalibration:
    """One direction between two hosts. `rate_bps` counts Ethernet frames, as the shaper does.

    `rtt_s` is the median round trip of idle probes and includes about 0.1 ms of this process.
    """

    sender: str
    receiver: str
    configured_rate_bps: int
    rate_bps: float
    rtt_s: float
    probes_sent: int
    probes_lost: int

    def as_json(self) -> dict[str, object]:
        """The record in `calibration.json`."""
        return {
            "from": self.sender,
            "to": self.receiver,
            "configured_rate_bps": self.configured_rate_bps,
            "rate_bps": self.rate_bps,
            "rtt_s": self.rtt_s,
            "probes_sent": self.probes_sent,
            "probes_lost": self.probes_lost,
        }


def warm_up(hosts: dict[str, HostInfo]) -> None:
    """One round trip on every path: the switch makes its sending socket with the first packet.

    Raises:
        CommandError: a host does not answer.
    """
    for sender, receiver in _pairs(hosts):
        with _udp(sender) as source, _udp(receiver) as sink:
            if _round_trip(source, sink) is None:
                raise CommandError(f"no answer from {receiver.name} to {sender.name}")


def calibrate(hosts: dict[str, HostInfo]) -> list[PathCalibration]:
    """Measure both directions between the server and every worker, one after another."""
    return [_measure(*pair) for pair in _pairs(hosts)]


def _pairs(hosts: dict[str, HostInfo]) -> Iterator[tuple[HostInfo, HostInfo]]:
    server = hosts["server"]
    for host in hosts.values():
        if host is not server:
            yield host, server
            yield server, host


def _measure(sender: HostInfo, receiver: HostInfo) -> PathCalibration:
    configured = min(sender.rate_bps, receiver.rate_bps)
    with _udp(sender) as source, _udp(receiver) as sink:
        trips = [_round_trip(source, sink) for _ in range(_ROUND_TRIPS)]
        answered = [trip for trip in trips if trip is not None]
        rate_bps = 0.0
        for _ in range(_MOST_RATE_TRIALS):
            # A trial that this process could not keep saturated shows less than the link can do.
            rate_bps = max(rate_bps, _delivered_rate_bps(source, sink, configured))
            if rate_bps >= _GOOD_SHARE * configured:
                break
    if not answered:
        raise CommandError(f"no answer from {receiver.name} to {sender.name}")
    return PathCalibration(
        sender=sender.name,
        receiver=receiver.name,
        configured_rate_bps=configured,
        rate_bps=rate_bps,
        rtt_s=statistics.median(answered),
        probes_sent=len(trips),
        probes_lost=len(trips) - len(answered),
    )


def _udp(host: HostInfo) -> socket.socket:
    opened = socket_in(host.pid, socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((host.address, 0))
    opened.settimeout(_ANSWER_TIMEOUT_S)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    return opened


def _round_trip(source: socket.socket, sink: socket.socket) -> float | None:
    began_s = time.monotonic()
    try:
        source.sendto(b"probe", sink.getsockname())
        sink.sendto(*sink.recvfrom(16))
        source.recv(16)
    except TimeoutError:
        return None
    return time.monotonic() - began_s


def _delivered_rate_bps(source: socket.socket, sink: socket.socket, rate_bps: int) -> float:
    """The rate of a saturated path: frames between two receive timestamps."""
    frame_bits = ETHERNET_FRAME_BYTES * 8
    count = min(2048, max(64, int(rate_bps * _RATE_TIME_S / frame_bits)))
    sink.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    target, payload = sink.getsockname(), bytes(_PAYLOAD_BYTES)

    def blast() -> None:
        for _ in range(count):  # blocks while the host's own queue is full
            source.sendto(payload, target)

    thread = threading.Thread(target=blast, daemon=True)
    thread.start()
    stamps: list[float] = []
    try:
        while len(stamps) < count:
            _, ancillary, _, _ = sink.recvmsg(_PAYLOAD_BYTES, 64)
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2][:16])
            stamps.append(seconds + nanoseconds * 1e-9)
    except TimeoutError:
        pass
    thread.join()
    steady = stamps[len(stamps) // 8 :]  # the first frames leave with the shaper's full bucket
    if len(steady) < 2 or steady[-1] <= steady[0]:
        return 0.0
    return (len(steady) - 1) * frame_bits / (steady[-1] - steady[0])
