"""Delay by the kernel: netem at each inner end, fed with what arrives at the other one.

Settings and order of frames are the same as the relay's. With jitter alone, netem would let frames
overtake each other; with a rate, here far above any link's, it times each frame after the one
before. Its drops are one number for overflow and configured loss together.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from testbed.lab.delay.delay_settings import DelaySettings, DirectionCounters, Middle
from testbed.lab.kernel.commands import CommandError, run

_ORDERING_RATE = "100gbit"


def missing(first: str, second: str) -> str:
    """Why this kernel cannot delay frames, or "" if it can: tries it on two unused interfaces."""
    trial = [
        f"qdisc add dev {second} root handle 1: netem delay 1ms rate {_ORDERING_RATE}",
        *redirection(first, second),
    ]
    reason = ""
    for line in trial:
        try:
            run(["tc", *line.split()])
        except CommandError as error:
            wanted = "netem" if "netem" in line else "mirred with u32 and ingress"
            reason = f"the kernel has no {wanted} ({str(error).rpartition(': ')[2]})"
            break
    for place in (f"{second} root", f"{first} ingress"):
        with contextlib.suppress(CommandError):  # the trial failed before this
            run(["tc", "qdisc", "delete", "dev", *place.split()])
    return reason


def setup(middles: Sequence[Middle]) -> None:
    """Join the inner ends of all links, by one call of tc."""
    lines = []
    for middle in middles:
        for way in (0, 1):
            here, there = middle.interfaces[way], middle.interfaces[1 - way]
            netem = _netem(middle, middle.settings)
            lines += [f"qdisc add dev {there} root handle 1: {netem}", *redirection(here, there)]
    run(["tc", "-batch", "-"], input_text="".join(f"{line}\n" for line in lines))


def redirection(source: str, sink: str) -> list[str]:
    """The commands of tc that make all frames that arrive at `source` leave by `sink`."""
    # u32 with a mask of nothing: every protocol, and no need for the matchall module.
    return [
        f"qdisc add dev {source} ingress",
        f"filter add dev {source} parent ffff: protocol all u32 match u32 0 0 "
        f"action mirred egress redirect dev {sink}",
    ]


def change(middle: Middle, sender: str, settings: DelaySettings) -> float:
    """Change one direction; frames in flight stay. Returns the monotonic time of the change, s."""
    sink = middle.interfaces[1 - middle.nodes.index(sender)]
    netem = _netem(replace(middle, settings=settings), settings)
    run(["tc", "qdisc", "change", "dev", sink, "root", "handle", "1:", *netem.split()])
    return time.monotonic()


def counters(middles: Sequence[Middle]) -> list[DirectionCounters]:
    """Frames so far; drops count as `lost` where a loss is configured, else as `dropped`."""
    text = run(["tc", "-s", "-j", "qdisc", "show"])
    try:
        found = {each["dev"]: each for each in json.loads(text) if each["kind"] == "netem"}
    except (ValueError, KeyError) as error:
        raise CommandError(f"tc printed no statistics: {text[:80]!r}") from error
    return [
        _counted(middle, way, found[middle.interfaces[1 - way]])
        for middle in middles
        for way in (0, 1)
    ]


def _counted(middle: Middle, way: int, statistics: Mapping[str, Any]) -> DirectionCounters:
    left, drops, waiting = statistics["packets"], statistics["drops"], statistics["qlen"]
    # The loss that the link began with, or has now.
    lossy = middle.settings.loss > 0 or "loss-random" in statistics["options"]
    return DirectionCounters(
        link=middle.link,
        sender=middle.nodes[way],
        frames_in=left + drops + waiting,
        frames_out=left,
        dropped=0 if lossy else drops,
        lost=drops if lossy else 0,
    )


def _netem(middle: Middle, settings: DelaySettings) -> str:
    words = f"netem limit {middle.slots} delay {settings.delay_s * 1e6:.0f}us"
    if settings.jitter_s:
        words += f" {settings.jitter_s * 1e6:.0f}us"
    return f"{words} loss {settings.loss * 100:.6f}% rate {_ORDERING_RATE}"
