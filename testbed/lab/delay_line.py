"""A delay line for kernels without netem: relays frames between two interfaces, each one later.

A process of its own with a packet socket on either interface. Frames are received in batches,
wait in memory for as long as the delay, and leave in the order in which they came. Segmentation,
coalescing and checksum offload must be off on everything that sends through it: it forwards what
it sees.

    line = DelayLine.start("veth0", "veth1", delay_s=0.005)
    ...
    statistics = line.close()
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass

import numpy as np

from testbed.lab.commands import CommandError
from testbed.lab.shaping import inside
from testbed.transport.mmsg import Ring

_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_QDISC_BYPASS, _PACKET_IGNORE_OUTGOING = 263, 20, 23
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 32 << 20
_SLOT_BYTES = 2048
_BATCH = 128
# The kernel's timer is late by about this much; waiting shorter and looking again is not worth it.
_SLACK_S = 20e-6
_LATENESS_SAMPLES = 20_000


@dataclass(frozen=True, kw_only=True)
class DelayStatistics:
    """What a delay line did to the frames of both directions, beyond the delay it was to add.

    Attributes:
        frames, dropped: relayed, and lost because its memory was full.
        cpu_s: processor time used.
        late_p50_s, late_p99_s, late_max_s: how much later than due frames left.
    """

    frames: int
    dropped: int
    cpu_s: float
    late_p50_s: float
    late_p99_s: float
    late_max_s: float


class DelayLine:
    """A running relay process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    def start(
        cls, first: str, second: str, *, delay_s: float, slots: int = 16384, pid: int | None = None
    ) -> DelayLine:
        """Relays between two interfaces of the namespace of `pid` (None: this one).

        Returns when frames flow; `slots` frames fit into each direction.

        Raises:
            CommandError: it could not begin, for example for want of the right to packet sockets.
        """
        process = subprocess.Popen(
            [
                *(*inside(pid), sys.executable, "-m", __name__, first, second),
                *(f"--delay-s={delay_s}", f"--slots={slots}"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            _, printed = process.communicate()
            raise CommandError(f"delay line {first}-{second}: {' '.join(printed.split())[-200:]}")
        return cls(process)

    def close(self) -> DelayStatistics:
        """Ends the relay and tells what it did."""
        printed, _ = self._process.communicate()  # closes its standard input, which ends it
        return DelayStatistics(**json.loads(printed))


class _Direction:
    """Frames from one packet socket to the other."""

    def __init__(
        self, source: socket.socket, sink: socket.socket, delay_s: float, slots: int
    ) -> None:
        self._source = source.fileno()
        self._sink = sink.fileno()
        self._delay_s = delay_s
        self._ring = Ring(slots, _SLOT_BYTES)
        self._waiting: deque[tuple[float, int, int]] = deque()  # due, first slot, count
        self._head = 0
        self._used = 0
        self.frames = 0
        self.lateness_s: deque[float] = deque(maxlen=_LATENESS_SAMPLES)

    @property
    def due_s(self) -> float | None:
        return self._waiting[0][0] if self._waiting else None

    @property
    def has_room(self) -> bool:
        return self._used < self._ring.slots

    def take(self) -> None:
        """Receives what has come, while there is memory; the rest waits in the socket."""
        while self._used < self._ring.slots:
            room = min(_BATCH, self._ring.slots - self._used)
            count = self._ring.receive(self._source, self._head, room)
            if not count:
                return
            self._waiting.append((time.monotonic() + self._delay_s, self._head, count))
            self._head = (self._head + count) % self._ring.slots
            self._used += count
            if count < room:
                return

    def give(self) -> None:
        """Sends what is due."""
        while self._waiting:
            due_s, first, count = self._waiting[0]
            now_s = time.monotonic()
            if due_s > now_s:
                return
            sent = 0
            while sent < count:
                try:
                    sent += self._ring.send(self._sink, first + sent, count - sent)
                except OSError:  # the interface does not take this one: it is lost
                    sent += 1
            self._waiting.popleft()
            self._used -= count
            self.frames += count
            self.lateness_s.append(now_s - due_s)


def _packet_socket(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with contextlib.suppress(OSError):  # as root of the host only
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    opened.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    opened.setblocking(False)
    opened.bind((interface, _ETH_P_ALL))
    return opened


def _dropped(opened: socket.socket) -> int:
    packets_and_drops = opened.getsockopt(_SOL_PACKET, 6, 8)  # PACKET_STATISTICS
    return int(np.frombuffer(packets_and_drops, dtype=np.uint32)[1])


def _relay(first: str, second: str, delay_s: float, slots: int) -> DelayStatistics:
    with _packet_socket(first) as one, _packet_socket(second) as two:
        there, back = _Direction(one, two, delay_s, slots), _Direction(two, one, delay_s, slots)
        print("ready", flush=True)
        while True:
            dues = [each.due_s for each in (there, back) if each.due_s is not None]
            wait_s = None
            if dues:
                wait_s = max(0.0, min(dues) - time.monotonic() - _SLACK_S)
            # A socket whose frames have no room would be ready for ever.
            roomy = [each for each, way in ((one, there), (two, back)) if way.has_room]
            ready, _, _ = select.select([*roomy, sys.stdin], [], [], wait_s)
            if sys.stdin in ready:
                break
            for source, direction in ((one, there), (two, back)):
                if source in ready:
                    direction.take()
                direction.give()
        late = np.array([*there.lateness_s, *back.lateness_s] or [0.0])
        return DelayStatistics(
            frames=there.frames + back.frames,
            dropped=_dropped(one) + _dropped(two),
            cpu_s=time.process_time(),
            late_p50_s=float(np.quantile(late, 0.5)),
            late_p99_s=float(np.quantile(late, 0.99)),
            late_max_s=float(late.max()),
        )


def main() -> None:
    """Relays until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--delay-s", type=float, required=True)
    parser.add_argument("--slots", type=int, required=True)
    given = parser.parse_args()
    with contextlib.suppress(OSError):  # where allowed, ahead of what it is to delay
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    statistics = _relay(given.first, given.second, given.delay_s, given.slots)
    print(json.dumps(asdict(statistics)), flush=True)


if __name__ == "__main__":
    main()
