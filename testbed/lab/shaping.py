"""Rate and queue of one link direction: HTB with a byte-limited FIFO below it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from testbed.lab.commands import CommandError, run

ETHERNET_FRAME_BYTES = 1514  # what the kernel counts for a full frame: no preamble, no FCS
BURST_TIME_S = 0.0005


@dataclass(frozen=True, kw_only=True)
class LinkShape:
    """Output of one interface: rate in bit/s of Ethernet frames, queue limit in bytes."""

    rate_bps: int
    queue_bytes: int

    @property
    def burst_bytes(self) -> int:
        """HTB's bucket: half a millisecond of the rate, but always two frames.

        HTB's own default (1600 bytes) loses a third of the rate above 200 Mbit/s because the
        timer that refills it cannot fire once per frame.
        """
        return max(2 * ETHERNET_FRAME_BYTES, int(self.rate_bps * BURST_TIME_S / 8))


def inside(pid: int | None) -> list[str]:
    """The prefix that runs a program in a host's network namespace (None: where we are)."""
    return [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net"]


def shape(interface: str, link: LinkShape, *, pid: int | None = None) -> None:
    """Shape the output of `interface`; `pid` names the namespace that it lives in."""
    burst = link.burst_bytes
    rate = (
        f"rate {link.rate_bps}bit ceil {link.rate_bps}bit "
        f"burst {burst}b cburst {burst}b quantum {ETHERNET_FRAME_BYTES}"
    )
    batch = (
        f"qdisc replace dev {interface} root handle 1: htb default 10\n"
        f"class replace dev {interface} parent 1: classid 1:10 htb {rate}\n"
        f"qdisc replace dev {interface} parent 1:10 handle 10: bfifo limit {link.queue_bytes}\n"
    )
    run([*inside(pid), "tc", "-batch", "-"], input_text=batch)


def queue_statistics(interface: str, *, pid: int | None = None) -> list[dict[str, Any]]:
    """The kernel's counters of every queueing discipline on `interface`, as `tc -s -j` has them."""
    text = run([*inside(pid), "tc", "-s", "-j", "qdisc", "show", "dev", interface])
    try:
        found: list[dict[str, Any]] = json.loads(text)
    except ValueError as error:
        raise CommandError(f"tc printed no JSON for {interface}: {text[:80]!r}") from error
    return found


def drops(interface: str, *, pid: int | None = None) -> int:
    """Packets that the FIFO of a shaped interface refused because it was full."""
    return sum(
        int(each["drops"])
        for each in queue_statistics(interface, pid=pid)
        if each["kind"] == "bfifo"
    )


def disable_offloads(interface: str, *, pid: int | None = None) -> None:
    """Make queues see single packets, and checksums real: OVS's user datapath needs both."""
    switches = ("tx", "rx", "tso", "gso", "gro")
    arguments = [word for name in switches for word in (name, "off")]
    run([*inside(pid), "ethtool", "-K", interface, *arguments])
