"""One direction of a relayed link: frames wait in the ring where the kernel put them.

The kernel notes when each frame came (packet(7), PACKET_RX_RING), and sendmmsg sends it from the
same place. So a relay that wakes up late adds nothing to the delay of frames that are not due yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.lab.delay.delay_settings import DelaySettings
from testbed.transport.compiled import address_of

_ETH_P_ALL = 3
_SOL_PACKET = 263
_SLOT_BYTES = 2048
_BLOCK_BYTES = 1 << 16
_RX_RING, _VERSION, _IGNORE_OUTGOING = 5, 10, 23
_TPACKET_V2 = 1
_STATISTICS, _QDISC_BYPASS = 6, 20
# struct tpacket2_hdr
_HEADER = np.dtype(
    {
        "names": ["status", "length", "offset", "seconds", "nanoseconds"],
        "formats": ["u4", "u4", "u2", "u4", "u4"],
        "offsets": [0, 4, 12, 16, 20],
        "itemsize": _SLOT_BYTES,
    }
)
# The same but for the status.
_HEADER_FIELDS = struct.Struct("=4xI4xH2xII")
_SCANNED_AT_ONCE = 256
_SECOND_NS = 1_000_000_000
_TRIES, _SAME_MOMENT_NS = 5, 10_000
_LATEST_NS = 20_000_000  # a frame that is later fails a run for itself


def opened_ring(slots: int, link: str) -> socket.socket:
    """Open a socket with a ring for frames, which receives nothing before it is bound."""
    # The kernel takes up to a quarter of a second to find the memory of a large one. So whoever
    # makes a relay take over a direction while it works opens the socket for it.
    with contextlib.ExitStack() as undo:
        ring = undo.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        ring.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        ring.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V2)
        blocks = slots * _SLOT_BYTES // _BLOCK_BYTES
        layout = struct.pack("=IIII", _BLOCK_BYTES, blocks, _SLOT_BYTES, slots)
        try:
            ring.setsockopt(_SOL_PACKET, _RX_RING, layout)
        except OSError as error:
            memory = f"{slots * _SLOT_BYTES / 1e6:.3g} MB for the {slots} frames in flight"
            raise OSError(error.errno, f"link {link}: {memory}: {error.strerror}") from error
        undo.pop_all()
    return ring


# struct mmsghdr, with the fields that are used, and struct iovec.
_MESSAGE = np.dtype(
    {
        "names": ["vectors", "vector_count"],
        "formats": ["u8", "u8"],
        "offsets": [16, 24],
        "itemsize": 64,
    }
)
_VECTOR = np.dtype([("base", "u8"), ("bytes", "u8")])
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.sendmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int]


class _Frames:
    """Frames that lie anywhere in memory and are sent in order."""

    def __init__(self, count: int) -> None:
        self._messages = np.zeros(count, dtype=_MESSAGE)
        self.vectors = np.zeros(count, dtype=_VECTOR)  # each frame's address and length
        self._address = address_of(self._messages)
        steps = np.arange(count, dtype=np.uint64)
        self._messages["vectors"] = address_of(self.vectors) + steps * _VECTOR.itemsize
        self._messages["vector_count"] = 1

    def send(self, descriptor: int, first: int, count: int) -> int:
        """Send messages from `first` on; return how many the kernel took. OSError when none."""
        at = self._address + first * _MESSAGE.itemsize
        taken = int(_LIBC.sendmmsg(descriptor, at, count, socket.MSG_DONTWAIT))
        if taken < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return taken


class DelayLine:
    """Frames from one inner interface, `source`, to the other, `sink`."""

    # `slots` is a multiple of 32. The n-th frame's jitter and loss depend on `seed` and n alone.

    def __init__(
        self,
        link: str,
        sender: str,
        source: str,
        sink: str,
        *,
        slots: int,
        settings: DelaySettings,
        seed: Sequence[int] | None = None,
        ring: int | None = None,
    ) -> None:
        """Raises OSError for an interface, or a socket `ring`, that is none; duplicates `ring`."""
        self._way = {"link": link, "from": sender}
        self._slots = slots
        self._jitter, self._loss = generators(seed)
        if ring is None:
            self._in = opened_ring(slots, link)
        else:
            self._in = socket.fromfd(ring, socket.AF_PACKET, socket.SOCK_RAW)
        self._out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        with contextlib.suppress(OSError):
            self._out.setsockopt(_SOL_PACKET, _QDISC_BYPASS, 1)
        self._out.bind((sink, 0))  # protocol 0: receives nothing
        self._memory = mmap.mmap(self._in.fileno(), slots * _SLOT_BYTES)
        self._ring = np.frombuffer(self._memory, dtype=_HEADER)
        self._status = self._ring["status"]
        self._base = int(self._ring.__array_interface__["data"][0])
        self._starts = np.uint64(self._base) + np.arange(slots, dtype=np.uint64) * np.uint64(
            _SLOT_BYTES
        )
        self._messages, self._picked = _Frames(slots), _Frames(slots)
        self._places = self._messages.vectors["base"]
        self._lengths = self._messages.vectors["bytes"]
        self._came_ns: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self._due_ns: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self._kept: NDArray[np.bool_] = np.ones(slots, dtype=np.bool_)
        self._first = 0  # the oldest frame that waits
        self._waiting = 0
        self._last_due_ns = 0
        self._collected_ns = time.monotonic_ns()
        self._seen = self._left = self._refused = self._lost = self._overrun = 0
        self.set(settings)
        self._usual_ns = self._delay_ns, self._jitter_ns
        self._in.bind((source, _ETH_P_ALL))  # from here on frames come

    def close(self) -> None:
        self._in.close()
        self._out.close()

    def fileno(self) -> int:
        """Return the descriptor that is readable when a frame arrives while none waits."""
        return self._in.fileno()

    def set(self, settings: DelaySettings) -> None:
        """Change the settings for frames not yet collected; frames in flight keep theirs."""
        self.settings = settings
        self._delay_ns = round(settings.delay_s * _SECOND_NS)
        self._jitter_ns = round(settings.jitter_s * _SECOND_NS)

    @property
    def due_ns(self) -> int | None:
        return int(self._due_ns[self._first]) if self._waiting else None

    def clear_error(self) -> None:
        """Clear the error of an interface that went down, which keeps its socket readable."""
        self._in.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def collect(self) -> None:
        """Find the frames that have arrived and set the time at which each has to leave."""
        now_ns, clock_ns = _both_clocks_ns()
        while self._waiting < self._slots:
            first = (self._first + self._waiting) % self._slots
            # Up to the ring's end, and not around into frames that wait.
            room = min(self._slots - self._waiting, self._slots - first, _SCANNED_AT_ONCE)
            if not self._status[first] & 1:
                break
            if room == 1 or not self._status[first + 1] & 1:  # mostly, where frames are far apart
                self._take_one(first, now_ns, clock_ns)
                continue
            here = self._status[first : first + room] & 1
            count = room if here.all() else int(here.argmin())
            self._take(first, count, now_ns, clock_ns)
            if count < room:
                break
        self._collected_ns = now_ns

    def _take_one(self, first: int, now_ns: int, clock_ns: int) -> None:
        """Do what `_take` does, without the cost of arrays: their first use takes 100 us."""
        header = _HEADER_FIELDS.unpack_from(self._memory, first * _SLOT_BYTES)
        length, offset, seconds, nanoseconds = header
        age_ns = clock_ns - seconds * _SECOND_NS - nanoseconds
        came_ns = now_ns - min(max(0, age_ns), max(0, now_ns - self._collected_ns))
        due_ns = came_ns + self._delay_ns
        if self._jitter_ns:
            due_ns += int(jitter_ns(self._jitter, self._jitter_ns, 1)[0])
        self._last_due_ns = max(due_ns, self._last_due_ns)
        self._came_ns[first], self._due_ns[first] = came_ns, self._last_due_ns
        self._places[first] = self._base + first * _SLOT_BYTES + offset
        self._lengths[first] = length
        loss = self.settings.loss
        self._kept[first] = bool(kept(self._loss, loss, 1)[0]) if loss else True
        self._waiting += 1
        self._seen += 1

    def _take(self, first: int, count: int, now_ns: int, clock_ns: int) -> None:
        span = slice(first, first + count)
        frames = self._ring[span]
        stamp_ns = frames["seconds"].astype(np.int64) * _SECOND_NS + frames["nanoseconds"]
        # Stamps are of the wall clock, which may be set. No frame came before the last collection.
        age_ns = np.clip(clock_ns - stamp_ns, 0, max(0, now_ns - self._collected_ns))
        came_ns = now_ns - age_ns
        self._came_ns[span] = came_ns
        due_ns = came_ns + self._delay_ns
        if self._jitter_ns:
            due_ns += jitter_ns(self._jitter, self._jitter_ns, count)
        due_ns[0] = max(int(due_ns[0]), self._last_due_ns)
        self._due_ns[span] = np.maximum.accumulate(due_ns)
        self._last_due_ns = int(self._due_ns[first + count - 1])
        self._places[span] = self._starts[span] + frames["offset"]
        self._lengths[span] = frames["length"]
        if self.settings.loss:
            self._kept[span] = kept(self._loss, self.settings.loss, count)
        else:
            self._kept[span] = True
        self._waiting += count
        self._seen += count

    def send_due(self, now_ns: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Send all frames that are due, in batches: the times they were due, and when they came."""
        while self._waiting and self._due_ns[self._first] <= now_ns:
            first = self._first
            end = min(first + self._waiting, self._slots)
            count = 1
            if end > first + 1 and self._due_ns[first + 1] <= now_ns:
                count = int(self._due_ns[first:end].searchsorted(now_ns, side="right"))
            span = slice(first, first + count)
            self._send(span, count)
            self._status[span] = 0
            self._waiting -= count
            self._first = (first + count) % self._slots
            yield self._due_ns[span], self._came_ns[span]

    def _send(self, span: slice, count: int) -> None:
        survive = self._kept[span]
        if survive.all():
            messages, first = self._messages, span.start
        else:
            chosen = np.flatnonzero(survive) + span.start
            self._lost += count - len(chosen)
            count, first, messages = len(chosen), 0, self._picked
            messages.vectors[:count] = self._messages.vectors[chosen]
        done = 0
        while done < count:
            try:
                sent = messages.send(self._out.fileno(), first + done, count - done)
                self._left += sent
                done += sent
            except OSError:  # the interface refuses this one
                self._refused += 1
                done += 1

    def unusual_until_ns(self, now_ns: int) -> float:
        """Return until when waits differ from those at first; frames in flight have to leave."""
        if (self._delay_ns, self._jitter_ns) != self._usual_ns:
            return math.inf
        return max(now_ns, self._last_due_ns) + _LATEST_NS

    def delay(self, waits: Mapping[str, Any]) -> dict[str, Any]:
        """Report the settings and what came of them; `waits` as of `Punctuality.waits`."""
        return {**self._way, **asdict(self.settings), "slots": self._slots, **waits}

    def counters(self) -> dict[str, Any]:
        """Count frames so far; a frame that found the ring full counts as arrived and dropped."""
        statistics = self._in.getsockopt(_SOL_PACKET, _STATISTICS, 8)  # and sets them back
        self._overrun += int(np.frombuffer(statistics, dtype=np.uint32)[1])
        return {
            **self._way,
            "frames_in": self._seen + self._overrun,
            "frames_out": self._left,
            "dropped": self._refused + self._overrun,
            "lost": self._lost,
        }


def generators(seed: Sequence[int] | None) -> list[np.random.Generator]:
    # Two: how frames fall into batches must not change which of them are lost.
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2)]


def jitter_ns(random: np.random.Generator, most_ns: int, count: int) -> NDArray[np.int64]:
    """Draw how much longer than the delay the next frames wait: evenly, `most_ns` less or more."""
    return random.integers(-most_ns, most_ns, count, endpoint=True)


def kept(random: np.random.Generator, loss: float, count: int) -> NDArray[np.bool_]:
    """Draw which of the next frames survive a loss."""
    return random.random(count) >= loss


def _both_clocks_ns() -> tuple[int, int]:
    """Read the monotonic and the wall clock at one moment."""
    # Whoever is interrupted between the two would take frames for older than they are.
    for _ in range(_TRIES):
        now_ns, clock_ns = time.monotonic_ns(), time.time_ns()
        if time.monotonic_ns() - now_ns < _SAME_MOMENT_NS:
            break
    return now_ns, clock_ns
