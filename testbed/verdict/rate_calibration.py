"""Measures the rate of a saturated path, and how much it scatters.

The kernel stamps the arrivals. They are cut into short stretches, each a trial; none is left out.
"""

from __future__ import annotations

import math
import socket
import statistics
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES

_SO_TIMESTAMPNS, _SO_RCVBUFFORCE = 35, 33
_RECEIVE_BUFFER_BYTES = 64 << 20
_FRAME_MEMORY_BYTES = 2560  # what the kernel charges for a full frame, and some more
_NUMBER = struct.Struct("!I")  # at the start of a frame's payload
_PAYLOAD_BYTES = ETHERNET_FRAME_BYTES - 14 - 20 - 8
# A processor that is taken away for a moment spoils few of many short stretches. Shorter ones would
# measure the shaper's bucket (half a millisecond) and the timers instead of the rate.
_STRETCH_S = 0.005
# Jitter moves the ends of a stretch. Where there is some, stretches are long enough for it to
# matter little; what it does all the same, a simulation of so many stretches says.
_STRETCH_JITTERS, _LONGEST_STRETCH_S = 30, 0.2
_SIMULATED_STRETCHES = 200
_MOST_STRETCHES, _LEAST_STRETCHES = 40, 16
_MOST_FRAMES = 8192
_SILENT_FRAMES = 50
# A machine that was disturbed is measured for longer; what it showed so far counts all the same.
_MOST_BLASTS = 4
_GOOD_ERROR, _GOOD_SPREAD = 0.005, 0.01
_IQR_OF_NORMAL = 1.349  # in standard deviations


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The trials of one path."""

    median_bps: float
    spread: float  # interquartile range over the configured rate, without what chance explains
    trials: int


def duration_s(rate_bps: int, jitters_s: Sequence[float] = ()) -> float:
    """How long one blast over a path of this rate and these jitters takes, in seconds."""
    return _frames(rate_bps, jitters_s) * ETHERNET_FRAME_BYTES * 8 / rate_bps


def measure(
    source: socket.socket,
    sink: socket.socket,
    rate_bps: int,
    *,
    silence_s: float = 0.0,
    loss: float = 0.0,
    delivered_share: float = 1.0,
    jitters_s: Sequence[float] = (),
) -> Rate:
    """Saturate a path, once more where it looks disturbed, up to four times."""
    sink.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    with suppress(PermissionError):  # an ordinary user's sink holds some 180 frames
        sink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    if loss:
        frame_s = ETHERNET_FRAME_BYTES * 8 / rate_bps
        sink.settimeout(silence_s + _SILENT_FRAMES * frame_s)
    counted_loss = 0.0 if _numbers_tell(loss, delivered_share) else loss
    chance = chance_spread(rate_bps, counted_loss, jitters_s)
    trials_bps: list[float] = []
    for _ in range(_MOST_BLASTS):
        arrivals = _blast(source, sink, _frames(rate_bps, jitters_s), lossy=loss > 0)
        trials_bps += stretches_bps(
            arrivals,
            stretch_frames(rate_bps, jitters_s),
            loss=loss,
            delivered_share=delivered_share,
        )
        found = summary(trials_bps, rate_bps, chance=chance)
        if abs(found.median_bps / rate_bps - 1) <= _GOOD_ERROR and found.spread <= _GOOD_SPREAD:
            break
    return found


def stretches_bps(
    arrivals: Sequence[tuple[int, float]],
    frames: int,
    *,
    loss: float = 0.0,
    delivered_share: float = 1.0,
) -> list[float]:
    """The rate in every stretch of a blast, before configured losses, in bit/s."""
    # Where a full path delivers 1 - `loss` of its rate, no queue on the way overflows: then the
    # numbers tell exactly what was sent.
    steady = arrivals[max(frames, len(arrivals) // 8) :]  # the first leave with full buckets
    rates = []
    for first in range(0, len(steady) - frames, frames):
        (number, at_s), (last_number, last_s) = steady[first], steady[first + frames]
        carried = float(frames)
        if _numbers_tell(loss, delivered_share):
            carried = last_number - number
        elif loss:
            carried /= delivered_share
        took_s = last_s - at_s
        rates.append(carried * ETHERNET_FRAME_BYTES * 8 / took_s if took_s > 0 else math.inf)
    return rates


def summary(trials_bps: Sequence[float], rate_bps: int, *, chance: float = 0.0) -> Rate:
    """Median and spread of trials; without any, a rate of 0."""
    if len(trials_bps) < 2:
        return Rate(median_bps=sum(trials_bps), spread=1.0, trials=len(trials_bps))
    low_bps, median_bps, high_bps = statistics.quantiles(trials_bps, method="inclusive")
    seen = (high_bps - low_bps) / rate_bps
    spread = math.sqrt(max(0.0, seen**2 - chance**2))
    return Rate(median_bps=median_bps, spread=spread, trials=len(trials_bps))


def _numbers_tell(loss: float, delivered_share: float) -> bool:
    return loss > 0 and abs(delivered_share - (1 - loss)) < 1e-9


def chance_spread(rate_bps: int, loss: float, jitters_s: Sequence[float] = ()) -> float:
    """The interquartile range that random losses, and jitter, give to the time of a stretch."""
    frames = stretch_frames(rate_bps, jitters_s)
    lost = _IQR_OF_NORMAL * math.sqrt(loss / frames)
    if not jitters_s:
        return lost
    frame_s = ETHERNET_FRAME_BYTES * 8 / rate_bps
    random = np.random.default_rng(0)
    arrivals_s = np.arange(frames * _SIMULATED_STRETCHES) * frame_s
    for jitter_s in jitters_s:  # as `testbed.lab.delay` defines it
        drawn_s = arrivals_s + random.uniform(-jitter_s, jitter_s, len(arrivals_s))
        arrivals_s = np.maximum.accumulate(drawn_s)
    low, high = np.quantile(np.diff(arrivals_s[::frames]), (0.25, 0.75)) / (frames * frame_s)
    return math.hypot(lost, float(high - low))


def stretch_frames(rate_bps: int, jitters_s: Sequence[float] = ()) -> int:
    """How many arrivals one trial has."""
    stretch_s = min(_STRETCH_S + _STRETCH_JITTERS * sum(jitters_s), _LONGEST_STRETCH_S)
    return max(1, round(rate_bps * stretch_s / (ETHERNET_FRAME_BYTES * 8)))


def _frames(rate_bps: int, jitters_s: Sequence[float]) -> int:
    """How many frames a blast has: 0.2 s of them, fewer where they are many, more where few."""
    stretch = stretch_frames(rate_bps, jitters_s)
    stretches = min(_MOST_STRETCHES, max(_LEAST_STRETCHES, _MOST_FRAMES // stretch))
    if stretch == 1:  # a slow link: its frames last long
        stretches = max(_LEAST_STRETCHES, int(0.3 * rate_bps / (ETHERNET_FRAME_BYTES * 8)))
    return stretch * stretches * 8 // 7 + 2


def _blast(
    source: socket.socket, sink: socket.socket, count: int, *, lossy: bool
) -> list[tuple[int, float]]:
    """Send `count` frames, as fast as the sender's own queue takes them; returns what arrived."""
    target, rest = sink.getsockname(), bytes(_PAYLOAD_BYTES - _NUMBER.size)

    def send() -> None:
        for number in range(count):  # blocks while the host's own queue is full
            source.sendto(_NUMBER.pack(number) + rest, target)

    # Two threads of Python hinder each other above 200 Mbit/s. So all is sent before any is read,
    # unless the sink cannot hold it.
    held = sink.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // _FRAME_MEMORY_BYTES
    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    if count <= held:
        sending.join()
    arrivals: list[tuple[int, float]] = []
    with suppress(TimeoutError):
        while len(arrivals) < count:
            frame, ancillary, _, _ = sink.recvmsg(_PAYLOAD_BYTES, 64)
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2][:16])
            arrivals.append((_NUMBER.unpack_from(frame)[0], seconds + nanoseconds * 1e-9))
            if lossy and arrivals[-1][0] == count - 1:
                break
    sending.join()
    return arrivals
