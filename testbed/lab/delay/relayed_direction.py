"""One direction of a relayed link: frames wait in the ring where the kernel put them.

The kernel copies every frame that arrives at the inner interface into a ring of memory that it
shares with this process (packet(7), PACKET_RX_RING) and notes when the frame came. The frame stays
there until it is due; sendmmsg sends it from the same place. The arrival time is exact to the
microsecond, so a relay that wakes up late adds nothing to the delay of frames that are not due yet.
"""

from __future__ import annotations

import contextlib
import mmap
import socket
import struct
import time

import numpy as np
from numpy.typing import NDArray

from testbed.lab.delay.delay_settings import DelaySettings, DirectionCounters
from testbed.transport.batched_io import MessageBatch

_ETH_P_ALL = 3
_SOL_PACKET = 263
_RX_RING, _STATISTICS, _VERSION = 5, 6, 10
_QDISC_BYPASS, _IGNORE_OUTGOING = 20, 23
_TPACKET_V2 = 1
_SLOT_BYTES = 2048
_BLOCK_BYTES = 1 << 16
# struct tpacket2_hdr
_HEADER = np.dtype(
    {
        "names": ["status", "length", "offset", "seconds", "nanoseconds"],
        "formats": ["u4", "u4", "u2", "u4", "u4"],
        "offsets": [0, 4, 12, 16, 20],
        "itemsize": _SLOT_BYTES,
    }
)
_SCANNED_AT_ONCE = 256
_SECOND_NS = 1_000_000_000


class DelayLine:
    """Frames from one inner interface to the other.

    Args:
        link, sender: the directed link, for the counters.
        source, sink: inner interfaces: frames arrive at one and leave by the other.
        slots: frames that can be in flight, a power of two.
        settings: to begin with.
        random: decides jitter and loss.
    """

    def __init__(
        self,
        link: str,
        sender: str,
        source: str,
        sink: str,
        *,
        slots: int,
        settings: DelaySettings,
        random: np.random.Generator,
    ) -> None:
        self.link = link
        self.sender = sender
        self._slots = slots
        self._random = random
        self._in = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        with contextlib.suppress(OSError):
            self._out.setsockopt(_SOL_PACKET, _QDISC_BYPASS, 1)
        self._out.bind((sink, 0))  # protocol 0: receives nothing
        self._in.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        self._in.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V2)
        blocks = slots * _SLOT_BYTES // _BLOCK_BYTES
        ring = struct.pack("=IIII", _BLOCK_BYTES, blocks, _SLOT_BYTES, slots)
        self._in.setsockopt(_SOL_PACKET, _RX_RING, ring)
        self._memory = mmap.mmap(self._in.fileno(), blocks * _BLOCK_BYTES)
        self._ring = np.frombuffer(self._memory, dtype=_HEADER)
        self._status = self._ring["status"]
        base = int(self._ring.__array_interface__["data"][0])
        self._starts = np.uint64(base) + np.arange(slots, dtype=np.uint64) * np.uint64(_SLOT_BYTES)
        self._messages = MessageBatch(slots)
        self._picked = MessageBatch(slots)
        self._due_ns: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self._kept: NDArray[np.bool_] = np.ones(slots, dtype=np.bool_)
        self._first = 0  # the oldest frame that waits
        self._waiting = 0
        self._last_due_ns = 0
        self._looked_ns = time.monotonic_ns()
        self._seen = self._left = self._refused = self._lost = self._overrun = 0
        self.set(settings)
        self._in.bind((source, _ETH_P_ALL))  # from here on frames come

    def fileno(self) -> int:
        """The descriptor that becomes readable when a frame arrives while none waits."""
        return self._in.fileno()

    def set(self, settings: DelaySettings) -> None:
        """Change the settings for frames not yet collected; frames in flight keep theirs."""
        self.settings = settings
        self._delay_ns = round(settings.delay_s * _SECOND_NS)
        self._jitter_ns = round(settings.jitter_s * _SECOND_NS)

    @property
    def due_ns(self) -> int | None:
        """When the next frame has to leave, on the monotonic clock; None if none waits."""
        return int(self._due_ns[self._first]) if self._waiting else None

    def clear_error(self) -> None:
        """Clear the error of an interface that went down, which keeps its socket readable."""
        self._in.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def collect(self) -> None:
        """Find the frames that have arrived and set the time at which each has to leave."""
        now_ns, clock_ns = time.monotonic_ns(), time.time_ns()
        while self._waiting < self._slots:
            first = (self._first + self._waiting) % self._slots
            # Up to the ring's end, and not around into frames that wait.
            room = min(self._slots - self._waiting, self._slots - first, _SCANNED_AT_ONCE)
            if not self._status[first] & 1:
                break
            here = self._status[first : first + room] & 1
            count = room if here.all() else int(here.argmin())
            self._take(first, count, now_ns, clock_ns)
            if count < room:
                break
        self._looked_ns = now_ns

    def _take(self, first: int, count: int, now_ns: int, clock_ns: int) -> None:
        span = slice(first, first + count)
        frames = self._ring[span]
        stamp_ns = frames["seconds"].astype(np.int64) * _SECOND_NS + frames["nanoseconds"]
        # Stamps are of the wall clock, which may be set. No frame came before the last look.
        age_ns = np.clip(clock_ns - stamp_ns, 0, max(0, now_ns - self._looked_ns))
        due_ns = now_ns - age_ns + self._delay_ns
        if self._jitter_ns:
            jitter_ns = self._random.integers(-self._jitter_ns, self._jitter_ns, count)
            due_ns += np.maximum(jitter_ns, -self._delay_ns)
        due_ns[0] = max(int(due_ns[0]), self._last_due_ns)
        self._due_ns[span] = np.maximum.accumulate(due_ns)
        self._last_due_ns = int(self._due_ns[first + count - 1])
        self._messages.place(span, self._starts[span] + frames["offset"], frames["length"])
        if self.settings.loss:
            self._kept[span] = self._random.random(count) >= self.settings.loss
        else:
            self._kept[span] = True
        self._waiting += count
        self._seen += count

    def send_due(self, now_ns: int) -> NDArray[np.int64] | None:
        """Send all frames that are due; returns the times they were due, None if none was."""
        gone: list[NDArray[np.int64]] = []
        while self._waiting and self._due_ns[self._first] <= now_ns:
            first = self._first
            end = min(first + self._waiting, self._slots)
            count = int(self._due_ns[first:end].searchsorted(now_ns, side="right"))
            span = slice(first, first + count)
            gone.append(self._due_ns[span].copy())
            self._send(span, count)
            self._status[span] = 0
            self._waiting -= count
            self._first = (first + count) % self._slots
        if not gone:
            return None
        return gone[0] if len(gone) == 1 else np.concatenate(gone)

    def _send(self, span: slice, count: int) -> None:
        kept = self._kept[span]
        if kept.all():
            messages, first = self._messages, span.start
        else:
            chosen = np.flatnonzero(kept) + span.start
            self._lost += count - len(chosen)
            count, first, messages = len(chosen), 0, self._picked
            messages.copy(self._messages, chosen)
        done = 0
        while done < count:
            try:
                sent = messages.send(self._out.fileno(), first + done, count - done)
                self._left += sent
                done += sent
            except OSError:  # the interface refuses this one
                self._refused += 1
                done += 1

    def counters(self) -> DirectionCounters:
        """Frames so far; a frame that found the ring full counts as arrived and dropped."""
        taken = self._in.getsockopt(_SOL_PACKET, _STATISTICS, 8)  # and sets them back
        self._overrun += int(np.frombuffer(taken, dtype=np.uint32)[1])
        return DirectionCounters(
            link=self.link,
            sender=self.sender,
            frames_in=self._seen + self._overrun,
            frames_out=self._left,
            dropped=self._refused + self._overrun,
            lost=self._lost,
        )
