"""Frames that the kernel puts into an interface's egress queue at an even rate.

A program that wakes up every millisecond sends bunches, between which an even flow finds room in a
full queue. Here frames are sent early and wait for the kernel's shaper:
socket -> veth (HTB at the rate) -> its peer -> copied into the egress queue of the interface
"""

from __future__ import annotations

import itertools
import math
import socket

from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.rtnetlink import Rtnetlink, bring_up_silent

_WAITING_BYTES = 64 << 20
_SNDBUFFORCE = 32  # SO_SNDBUFFORCE; the module socket does not name it
# Every timer that the shaper sets costs some microseconds of a processor.
_SHORTEST_GAP_S = 100e-6
_MOST_COPIES = 32  # of the kernel: TCA_ACT_MAX_PRIO
_numbers = itertools.count()


def clump_frames(*, rate_bps: float, link_rate_bps: float, frame_bytes: int) -> int:
    """Return how many frames come at once: clumps are rare enough for the kernel's timers."""
    # From clump to clump the queue must not free a whole number of places. Otherwise clumps would
    # keep in phase with departures and get every place (phase effects: Floyd and Jacobson, 1992).
    factor = rate_bps / link_rate_bps
    frames = max(1 + int(factor), math.ceil(rate_bps / (8 * frame_bytes) * _SHORTEST_GAP_S))
    frames = min(frames, _MOST_COPIES - 1)
    return frames + 1 if factor > 1 and (frames / factor).is_integer() else frames


class PacedFrames:
    """Sends copies of one Ethernet frame into an output queue of this namespace."""

    def __init__(
        self, interface: str, frame: bytes, *, rate_bps: float, link_rate_bps: float
    ) -> None:
        """Both rates are in bit/s of Ethernet frames; the queue drains at `link_rate_bps`."""
        self._frame = frame
        self.copies = clump_frames(
            rate_bps=rate_bps, link_rate_bps=link_rate_bps, frame_bytes=len(frame)
        )
        number = next(_numbers)
        near, far = f"paced{number}a", f"paced{number}b"
        with Rtnetlink() as kernel:
            kernel.send([rtnetlink.veth(near, far)])
            paced = kernel.interface(near)
            rate = rtnetlink.htb_class(
                paced,
                rate_bps=max(8, round(rate_bps / self.copies)),
                burst_bytes=4 * len(frame),  # a late timer makes up for three clumps at once
                quantum_bytes=len(frame),
            )
            waiting = rtnetlink.bfifo(paced, limit_bytes=_WAITING_BYTES)
            kernel.send([rtnetlink.htb(paced), rate, waiting])
        for end in (near, far):  # what either said of its own accord would be copied as well
            bring_up_silent(end)
        run(["tc", "qdisc", "add", "dev", far, "ingress"])
        actions = ["action", "mirred", "egress", "mirror", "dev", interface] * (self.copies - 1)
        actions += ["action", "mirred", "egress", "redirect", "dev", interface]
        all_of_it = ["parent", "ffff:", "protocol", "all", "u32", "match", "u32", "0", "0"]
        run(["tc", "filter", "add", "dev", far, *all_of_it, *actions])
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setblocking(False)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, _WAITING_BYTES)
        except PermissionError:  # an ordinary user's namespace: as much as the kernel allows
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WAITING_BYTES)
        self._socket.bind((near, 0))

    def send(self, count: int) -> int:
        """Queue at most `count` frames; returns how many were queued, in whole clumps."""
        clumps = count // self.copies
        for sent in range(clumps):
            try:
                self._socket.send(self._frame)
            except BlockingIOError:
                return sent * self.copies
        return clumps * self.copies
