"""Fills every link's queue before training, to compare its real limit with the configured one.

Frames of an experimental EtherType go towards an address that nobody owns, faster than they drain.
"""

from __future__ import annotations

import errno
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from testbed.lab.kernel import link_counters
from testbed.lab.kernel.namespaces import entered, socket_in
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES, OWN_ETHERTYPE, LinkShape, rate_message
from testbed.lab.network import LabInfo, LinkEnds, Port

# Destination, source (locally administered, of no host).
_HEADER = bytes.fromhex("02000000ca1b 02000000ca1c") + OWN_ETHERTYPE.to_bytes(2)
_FRAME = _HEADER.ljust(ETHERNET_FRAME_BYTES, b"\0")
_SO_SNDBUFFORCE = 32
_SEND_BUFFER_BYTES = 128 << 20
_MOST_SOCKETS = 64
_LOOKS = 4
_LONGEST_DRAIN_S = 1.0
_PATIENCE_S = 0.1
_SLOWEST_FILLING_BYTES_PER_S = 100e6
# RED as `shaping.mark` sets it drops at its limit only. (These frames cannot be marked.)
_LIMITED_IN_BYTES = ("bfifo", "red")
_DRAIN_POLL_S = 0.002


@dataclass(frozen=True, kw_only=True)
class QueueCalibration:
    """The queue at `sender`'s end of `link`.

    Attributes:
        limit_bytes: as configured.
        peak_bytes: the longest queue that was seen; None: not measured.
        resolution_bytes: a full queue may have looked shorter by this much: a frame did not fit
            any more, and others left between the last refusal and the look.
        refused: frames that found the queue full.
        reason: why it was not measured.
    """

    link: str
    sender: str
    limit_bytes: int
    peak_bytes: int | None = None
    resolution_bytes: int = 0
    refused: int = 0
    reason: str = ""

    @property
    def place(self) -> str:
        return f"{self.link} from {self.sender}"

    @property
    def error(self) -> float | None:
        """How far beyond or short of the limit the full queue was, as a share of the limit."""
        if self.peak_bytes is None:
            return None
        beyond = self.peak_bytes - self.limit_bytes
        short = self.limit_bytes - self.peak_bytes - self.resolution_bytes
        return max(0, beyond, short) / self.limit_bytes

    def as_json(self) -> dict[str, Any]:
        """The record in `calibration.json`."""
        record = asdict(self)
        return record | {"from": record.pop("sender"), "error": self.error}


def fill_all(network: LabInfo) -> list[QueueCalibration]:
    """Fill every queue of an idle network and wait until all are empty again."""
    found = []
    filled: list[Port] = []
    slow: list[tuple[LinkEnds, Port]] = []
    for link in network.links:
        for end in (link.first, link.second):
            measured = _fill(link, end)
            found.append(measured)
            if measured.peak_bytes is not None:
                filled.append(end)
                if link.queue_bytes * 8 / link.rate_bps > _LONGEST_DRAIN_S:
                    slow.append((link, end))
    # One that would take long to drain is let out at a higher rate for a while.
    for link, end in slow:
        _set_rate(link, end, int(link.queue_bytes * 8 / _LONGEST_DRAIN_S))
    deadline_s = time.monotonic() + 2 * _LONGEST_DRAIN_S
    while any(_backlog(end)[0] for end in filled) and time.monotonic() < deadline_s:
        time.sleep(_DRAIN_POLL_S)
    for link, end in slow:
        _set_rate(link, end, link.rate_bps)
    return found


def _set_rate(link: LinkEnds, end: Port, rate_bps: int) -> None:
    with Rtnetlink(end.pid) as kernel:
        shape = LinkShape(rate_bps=rate_bps, queue_bytes=link.queue_bytes)
        kernel.send([rate_message(kernel.interface(end.interface), shape)])


def _fill(link: LinkEnds, end: Port) -> QueueCalibration:
    calibration = partial(
        QueueCalibration, link=link.name, sender=end.node, limit_bytes=link.queue_bytes
    )
    kind = _backlog(end)[1]
    if kind not in _LIMITED_IN_BYTES:
        return calibration(reason=f"its limit is not one in bytes ({kind or 'none'})")
    with ExitStack() as stack:
        sockets = [stack.enter_context(_packet_socket(end))]
        peak_bytes = refused = 0
        resolution_bytes = link.queue_bytes
        patience_s = _PATIENCE_S + link.queue_bytes / _SLOWEST_FILLING_BYTES_PER_S
        for _ in range(_LOOKS):
            if not _send_until_refused(sockets, end, stack, patience_s):
                break
            refused += 1
            refused_s = time.monotonic()
            backlog_bytes = _backlog(end)[0]
            drained_bytes = (time.monotonic() - refused_s) * link.rate_bps / 8
            peak_bytes = max(peak_bytes, backlog_bytes)
            resolution_bytes = min(resolution_bytes, int(2 * ETHERNET_FRAME_BYTES + drained_bytes))
    if not refused:
        return calibration(reason="this process could not send faster than the link drains")
    return calibration(peak_bytes=peak_bytes, resolution_bytes=resolution_bytes, refused=refused)


def _send_until_refused(
    sockets: list[socket.socket], end: Port, stack: ExitStack, patience_s: float
) -> bool:
    """Send until the queue refuses a frame; False if that did not happen within the time."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            for _ in range(16):
                sockets[-1].send(_FRAME)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return True
            if error.errno != errno.EAGAIN:
                raise
            # The socket's own buffer is full, an ordinary user's soon: open another socket.
            if len(sockets) == _MOST_SOCKETS:
                return False
            sockets.append(stack.enter_context(_packet_socket(end)))
    return False


def _packet_socket(end: Port) -> socket.socket:
    opened = socket_in(end.pid, socket.AF_PACKET, socket.SOCK_RAW)
    opened.setblocking(False)
    with suppress(PermissionError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER_BYTES)
    opened.bind((end.interface, 0))
    return opened


def _backlog(end: Port) -> tuple[int, str]:
    """Bytes that wait at an interface, and the kind of queue that they wait in."""
    with entered(end.pid):
        return link_counters.waiting(end.interface)
