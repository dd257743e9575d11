"""Reads back how the kernel shapes an interface: HTB's rates and bucket, the queue, segments."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from testbed.lab.kernel import netlink
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.netlink import NetlinkError
from testbed.lab.kernel.rtnetlink import (
    FIRST_SERVED,
    GET_QDISC,
    IN_CLASS,
    LAST_SERVED,
    NEW_QDISC,
    ROOT,
    TCMSG,
    TICK_S,
    Rtnetlink,
)

_DEL_QDISC, _NEW_CLASS, _DEL_CLASS, _GET_CLASS = 37, 40, 41, 42
_KIND, _OPTIONS = 1, 2
_HTB_PARAMETERS, _RATE64, _CEIL64 = 1, 6, 7
_RED_PARAMETERS, _RED_FLAGS = 1, 4
# struct tc_red_qopt: limit, lower and upper threshold, three logarithms, flags.
_RED = struct.Struct("=II4x3xB")
_MARKS_ALONE = 1 | 8  # TC_RED_ECN and TC_RED_NODROP
# struct tc_htb_opt: two tc_ratespec, whose rate is their last word, then bucket and its ceiling.
_HTB = struct.Struct("=8xI8xII")


@dataclass(frozen=True, kw_only=True)
class ShapeInForce:
    """What decides how packets leave an interface, by the kernel."""

    rate_bps: int
    ceiling_bps: int
    burst_bytes: int
    queue_bytes: int | None
    ecn_threshold_bytes: int | None
    most_segments: int
    priority_queue_bytes: int | None = 0


def read(kernel: Rtnetlink, interface: str) -> ShapeInForce:
    """How an interface in the namespace of `kernel` is shaped."""
    index = kernel.index(interface)
    for _, content in netlink.dump(kernel.socket, _GET_CLASS, TCMSG.pack(0, index, 0, 0, 0)):
        if TCMSG.unpack_from(content)[2] == IN_CLASS:
            rate, ceiling, ticks = _htb(content)
            first = _queue(kernel, index, FIRST_SERVED)
            last = _queue(kernel, index, IN_CLASS if first is None else LAST_SERVED)
            queue_bytes, ecn_threshold_bytes = (None, 0) if last is None else queue_of(last)
            return ShapeInForce(
                rate_bps=8 * rate,
                ceiling_bps=8 * ceiling,
                burst_bytes=round(ticks * TICK_S * rate),
                queue_bytes=queue_bytes,
                ecn_threshold_bytes=ecn_threshold_bytes,
                most_segments=kernel.most_segments(interface),
                priority_queue_bytes=0 if first is None else queue_of(first)[0],
            )
    raise CommandError(f"{interface}: nothing limits its rate")


def changed_settings(kind: int, content: memoryview) -> tuple[int, dict[str, int | None]]:
    """The interface that a message about a change is about, and the settings that it tells."""
    _, interface, handle, parent, _ = TCMSG.unpack_from(content)
    if kind == _NEW_CLASS and handle == IN_CLASS:
        rate, ceiling, ticks = _htb(content)
        burst_bytes = round(ticks * TICK_S * rate)
        found = {"rate_bps": 8 * rate, "ceiling_bps": 8 * ceiling, "burst_bytes": burst_bytes}
        return interface, dict(found)
    if (kind, handle) == (_DEL_CLASS, IN_CLASS) or (kind, parent) == (_DEL_QDISC, ROOT):
        return interface, {"rate_bps": None}
    if kind in (NEW_QDISC, _DEL_QDISC) and parent in (IN_CLASS, FIRST_SERVED, LAST_SERVED):
        limit, threshold = queue_of(content) if kind == NEW_QDISC else (None, None)
        if parent == FIRST_SERVED:
            return interface, {"priority_queue_bytes": limit}
        kind_of_queue = netlink.string(netlink.values(content, TCMSG.size)[_KIND])
        if parent == LAST_SERVED or kind_of_queue != "htb":
            return interface, {"queue_bytes": limit, "ecn_threshold_bytes": threshold}
    return interface, {}


def _htb(content: memoryview) -> tuple[int, int, int]:
    """Rate and ceiling in byte/s and the bucket in the kernel's units of time."""
    options = netlink.values(netlink.values(content, TCMSG.size).get(_OPTIONS, memoryview(b"")))
    if _HTB_PARAMETERS not in options:
        raise CommandError("a class of a link is not HTB's")
    rate, ceiling, ticks = _HTB.unpack_from(options[_HTB_PARAMETERS])
    if _RATE64 in options:
        (rate,) = struct.unpack("=Q", options[_RATE64])
    if _CEIL64 in options:
        (ceiling,) = struct.unpack("=Q", options[_CEIL64])
    return rate, ceiling, ticks


def _queue(kernel: Rtnetlink, index: int, parent: int) -> memoryview | None:
    """What the kernel says of the queue in a class; None: there is none."""
    try:
        return netlink.ask(kernel.socket, GET_QDISC, TCMSG.pack(0, index, 0, parent, 0))
    except NetlinkError:
        return None


def queue_of(content: memoryview) -> tuple[int | None, int | None]:
    """Limit and threshold of a queue, as in `ShapeInForce`, from what the kernel says of it."""
    about = netlink.values(content, TCMSG.size)
    kind = netlink.string(about[_KIND])
    if kind == "bfifo":
        return int(struct.unpack_from("=I", about[_OPTIONS])[0]), 0
    options = netlink.values(about[_OPTIONS]) if kind == "red" else {}
    if _RED_PARAMETERS not in options:
        return None, 0
    limit, least, flags = _RED.unpack_from(options[_RED_PARAMETERS])
    if _RED_FLAGS in options:  # before Linux 5.7 there is none
        (flags,) = struct.unpack_from("=I", options[_RED_FLAGS])
    return limit, least if flags & _MARKS_ALONE == _MARKS_ALONE else None
