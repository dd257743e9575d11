"""Rate and queue of one link direction: HTB, below it a byte-limited FIFO or a marking queue.

Or two FIFOs: one for protected datagrams (`testbed.shared.dscp`), served first, one for all else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from testbed.lab.kernel import netlink, rtnetlink
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.netlink import NetlinkError
from testbed.lab.kernel.rtnetlink import FIRST_SERVED, IN_CLASS, LAST_SERVED, TCMSG, Rtnetlink
from testbed.shared import dscp

ETHERNET_FRAME_BYTES = 1514  # what the kernel counts for a full frame: no preamble, no FCS
# IEEE 802 local experimental: of bursts and of what fills queues. Receiving kernels ignore it.
OWN_ETHERTYPE = 0x88B5
BURST_TIME_S = 0.0005


class MissingCapabilityError(CommandError):
    """This kernel lacks something that a link asks for."""


@dataclass(frozen=True, kw_only=True)
class LinkShape:
    """Output of one interface: a rate in bit/s of Ethernet frames, a queue's limit, and marking.

    `priority_queue_bytes` is the limit of a second queue, for protected datagrams, which is served
    first; it excludes `ecn_threshold_bytes`, above which packets that allow it are marked.
    """

    rate_bps: int
    queue_bytes: int
    ecn_threshold_bytes: int | None = None
    priority_queue_bytes: int | None = None

    @classmethod
    def of_link(cls, link: Mapping[str, Any]) -> LinkShape:
        settings: dict[str, Any] = {field.name: link.get(field.name) for field in fields(cls)}
        return cls(**settings)

    @property
    def burst_bytes(self) -> int:
        """HTB's bucket: half a millisecond of the rate, but always two frames."""
        # HTB's own default (1600 bytes) loses a third of the rate above 200 Mbit/s because the
        # timer that refills it cannot fire once per frame.
        return max(2 * ETHERNET_FRAME_BYTES, int(self.rate_bps * BURST_TIME_S / 8))


# An interface, a process in its namespace (None: ours), and the shape of what leaves it.
Output = tuple[str, int | None, LinkShape]


def inside(pid: int | None) -> list[str]:
    """Return the prefix that runs a program in a host's network namespace (None: here)."""
    return [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net"]


def shape(interface: str, link: LinkShape, *, pid: int | None = None) -> None:
    """Shape the output of `interface`; `pid` names the namespace that it lives in."""
    with Rtnetlink(pid) as kernel:
        _shape(kernel, interface, link, pid)


def shape_all(outputs: Iterable[Output]) -> None:
    """Shape many interfaces, whose queues then hold single packets: about 0.1 ms for each."""
    by_namespace: dict[int | None, list[tuple[str, LinkShape]]] = {}
    for interface, pid, link in outputs:
        by_namespace.setdefault(pid, []).append((interface, link))
    for pid, members in by_namespace.items():
        with Rtnetlink(pid) as kernel:
            for interface, link in members:
                kernel.disable_offloads(interface)
                _shape(kernel, interface, link, pid)
                if (segments := kernel.most_segments(interface)) != 1:
                    raise CommandError(
                        f"{interface} sends packets of {segments} segments, although it was told "
                        "to send single ones: its queue would hold clumps"
                    )


def _shape(kernel: Rtnetlink, name: str, link: LinkShape, pid: int | None) -> None:
    interface = kernel.interface(name)
    messages = [
        rtnetlink.single_segments(interface),
        rtnetlink.htb(interface),
        rate_message(interface, link),
    ]
    if link.priority_queue_bytes is not None:
        messages += rtnetlink.two_classes(
            interface, quantum_bytes=ETHERNET_FRAME_BYTES, dscp=dscp.PROTECTED
        )
        protected = rtnetlink.bfifo(
            interface, limit_bytes=link.priority_queue_bytes, parent=FIRST_SERVED
        )
        messages += [protected, limit_message(interface, link)]
    elif link.ecn_threshold_bytes is None:
        messages.append(limit_message(interface, link))
    try:
        kernel.send(messages)
    except CommandError as error:
        if str(error).startswith("filter ") and "No such file" in str(error):
            raise MissingCapabilityError(
                "priority-queue: this kernel has no u32 classifier (cls_u32), which "
                "priority_queue_bytes needs"
            ) from None
        raise
    if link.ecn_threshold_bytes is not None:
        mark(name, link, pid=pid)


def rate_message(interface: rtnetlink.Interface, link: LinkShape) -> rtnetlink.Message:
    """Make the message that sets the rate of a shaped interface, which may be in use."""
    return rtnetlink.htb_class(
        interface,
        rate_bps=link.rate_bps,
        burst_bytes=link.burst_bytes,
        quantum_bytes=ETHERNET_FRAME_BYTES,
    )


def limit_message(
    interface: rtnetlink.Interface, link: LinkShape, *, new: bool = True
) -> rtnetlink.Message:
    """Make the message that sets `queue_bytes` of a shaped interface, which may be in use."""
    two = link.priority_queue_bytes is not None
    parent = LAST_SERVED if two else IN_CLASS
    return rtnetlink.bfifo(interface, limit_bytes=link.queue_bytes, new=new, parent=parent)


def mark(interface: str, link: LinkShape, *, pid: int | None, verb: str = "replace") -> None:
    """Put a queue that marks packets below HTB: RED with two thresholds close to each other."""
    # Its average follows the queue as fast as tc allows (half of each change), so it is DCTCP's
    # step: mark all above the threshold, none below (Alizadeh et al., SIGCOMM 2010, section 3.1).
    # Packets without ECN are dropped at the limit only.
    threshold = link.ecn_threshold_bytes
    assert threshold is not None
    average = ETHERNET_FRAME_BYTES
    red = (
        f"red limit {link.queue_bytes} min {threshold} max {threshold + average} avpkt {average} "
        f"burst {-(-threshold // average)} bandwidth {link.rate_bps}bit probability 1 ecn nodrop"
    )
    place = ["dev", interface, "parent", "1:10", "handle", "10:"]
    try:
        run([*inside(pid), "tc", "qdisc", verb, *place, *red.split()])
    except CommandError as error:
        if "kind is unknown" in str(error) or "No such file" in str(error):
            raise MissingCapabilityError(
                "ecn-marking: this kernel has no RED, which ecn_threshold_bytes needs"
            ) from None
        raise


# What the kernel says of it

_NEW_QDISC, _DEL_QDISC, _NEW_CLASS, _DEL_CLASS, _GET_CLASS = 36, 37, 40, 41, 42
_DEL_ROOT = (_DEL_QDISC, rtnetlink.ROOT)
_KIND, _OPTIONS = 1, 2
_HTB_PARAMETERS, _RATE64, _CEIL64 = 1, 6, 7
_RED_PARAMETERS, _RED_FLAGS = 1, 4
# struct tc_red_qopt: limit, lower and upper threshold, three logarithms, flags.
_RED = struct.Struct("=II4x3xB")
_MARKS_ALONE = 1 | 8  # TC_RED_ECN and TC_RED_NODROP
# struct tc_htb_opt: two tc_ratespec, whose rate is their last word, then bucket and its ceiling.
_HTB = struct.Struct("=8xI8xII")


def in_force(kernel: Rtnetlink, interface: str) -> dict[str, int | None]:
    """Read how an interface in the namespace of `kernel` is shaped."""
    index = kernel.interface(interface).number
    for _, content in netlink.dump(kernel.socket, _GET_CLASS, TCMSG.pack(0, index, 0, 0, 0)):
        if TCMSG.unpack_from(content)[2] == IN_CLASS:
            first = _queue(kernel, index, FIRST_SERVED)
            last = _queue(kernel, index, IN_CLASS if first is None else LAST_SERVED)
            queue_bytes, ecn_threshold_bytes = (None, 0) if last is None else queue_of(last)
            return {
                **_rate(content),
                "queue_bytes": queue_bytes,
                "ecn_threshold_bytes": ecn_threshold_bytes,
                "most_segments": kernel.most_segments(interface),
                "priority_queue_bytes": 0 if first is None else queue_of(first)[0],
            }
    raise CommandError(f"{interface}: nothing limits its rate")


def changed_settings(kind: int, content: memoryview) -> tuple[int, dict[str, int | None]]:
    """Read the interface and the settings of a message about a change."""
    _, interface, handle, parent, _ = TCMSG.unpack_from(content)
    if (kind, handle) == (_NEW_CLASS, IN_CLASS):
        return interface, {**_rate(content)}
    if (kind, handle) == (_DEL_CLASS, IN_CLASS) or (kind, parent) == _DEL_ROOT:
        return interface, {"rate_bps": None}
    if kind in (_NEW_QDISC, _DEL_QDISC) and parent in (IN_CLASS, FIRST_SERVED, LAST_SERVED):
        limit, threshold = queue_of(content) if kind == _NEW_QDISC else (None, None)
        if parent == FIRST_SERVED:
            return interface, {"priority_queue_bytes": limit}
        kind_of_queue = netlink.string(netlink.values(content, TCMSG.size)[_KIND])
        if parent == LAST_SERVED or kind_of_queue != "htb":
            return interface, {"queue_bytes": limit, "ecn_threshold_bytes": threshold}
    return interface, {}


def _rate(content: memoryview) -> dict[str, int]:
    options = netlink.values(netlink.values(content, TCMSG.size).get(_OPTIONS, memoryview(b"")))
    if _HTB_PARAMETERS not in options:
        raise CommandError("a class of a link is not HTB's")
    rate, ceiling, ticks = _HTB.unpack_from(options[_HTB_PARAMETERS])
    if _RATE64 in options:
        (rate,) = struct.unpack("=Q", options[_RATE64])
    if _CEIL64 in options:
        (ceiling,) = struct.unpack("=Q", options[_CEIL64])
    burst_bytes = round(ticks * rtnetlink.TICK_S * rate)
    return {"rate_bps": 8 * rate, "ceiling_bps": 8 * ceiling, "burst_bytes": burst_bytes}


def _queue(kernel: Rtnetlink, index: int, parent: int) -> memoryview | None:
    try:
        return netlink.ask(kernel.socket, rtnetlink.GET_QDISC, TCMSG.pack(0, index, 0, parent, 0))
    except NetlinkError:
        return None


def queue_of(content: memoryview) -> tuple[int | None, int | None]:
    """Read limit and threshold of a queue; None: it has none."""
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
