"""Delay by the kernel: netem at each inner end, fed with what arrives at the other one.

With jitter alone, netem would let frames overtake; with a rate, here far above any link's, it times
each frame after the one before, as the relay does. Its random numbers are not seeded.
"""

# Netem counts its configured losses and its overflow as one number of drops, but it refuses a frame
# only for overflow (netem_enqueue in net/sched/sch_netem.c returns NET_XMIT_SUCCESS for a lost
# one). The redirection that hands it the frames counts each refusal as `overlimits`. So what came,
# and neither left, nor waits, nor was refused, is lost.

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from testbed.lab.delay.delay_settings import DelaySettings, Middle
from testbed.lab.kernel.commands import CommandError, run

_ORDERING_RATE = "100gbit"


def redirection(source: str, sink: str) -> list[str]:
    """Return tc's commands that make all frames that arrive at `source` leave by `sink`."""
    return [
        f"qdisc add dev {source} ingress",
        f"filter add dev {source} parent ffff: protocol all {everything_to(sink)}",
    ]


def everything_to(sink: str) -> str:
    """Return a filter's words that hand all frames to an interface."""
    # u32 with a mask of nothing: every protocol, and no need for the matchall module.
    return f"u32 match u32 0 0 action mirred egress redirect dev {sink}"


def missing(first: str, second: str) -> str:
    """Say why this kernel cannot delay frames, or ""; tries it on two unused interfaces."""
    trial = [
        f"qdisc add dev {second} root handle 1: netem delay 1ms rate {_ORDERING_RATE}",
        *redirection(first, second),
    ]
    reason = ""
    for line in trial:
        try:
            run(["tc", *line.split()])
        except CommandError as error:
            module = "netem" if "netem" in line else "mirred with u32 and ingress"
            reason = f"the kernel has no {module} ({str(error).rpartition(': ')[2]})"
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
    _in_one_call(lines)


def join(middles: Sequence[Middle]) -> None:
    """Let frames pass these middles untouched in both directions, by one call of tc."""
    ends = [middle.interfaces for middle in middles]
    _in_one_call([line for a, b in ends for way in ((a, b), (b, a)) for line in redirection(*way)])


def _in_one_call(lines: Sequence[str]) -> None:
    if lines:
        run(["tc", "-batch", "-"], input_text="".join(f"{line}\n" for line in lines))


def change(middle: Middle, sender: str, settings: DelaySettings) -> None:
    """Change one direction; frames in flight stay."""
    sink = middle.interfaces[1 - middle.nodes.index(sender)]
    netem = _netem(replace(middle, settings=settings), settings)
    run(["tc", "qdisc", "change", "dev", sink, "root", "handle", "1:", *netem.split()])


def report(middles: Sequence[Middle]) -> dict[str, Any]:
    """Report the settings (`delays`) and the frames so far (`directions`) of every direction."""
    text = ""
    try:
        text = run(["tc", "-s", "-j", "actions", "list", "action", "mirred"])
        # A long list comes in several parts.
        actions = [action for part in json.loads(text) for action in part.get("actions", ())]
        handed = {action["to_dev"]: action["stats"] for action in actions}
        text = run(["tc", "-s", "-j", "qdisc", "show"])
        queues = {queue["dev"]: queue for queue in json.loads(text) if queue["kind"] == "netem"}
        delays, directions = [], []
        for middle in middles:
            for sender, sink in zip(middle.nodes, reversed(middle.interfaces), strict=True):
                way = {"link": middle.link, "from": sender}
                delays.append(way | _settings(queues[sink]["options"]))
                directions.append(way | _counters(handed[sink], queues[sink]))
    except (ValueError, KeyError) as error:
        raise CommandError(f"tc printed no statistics: {text[:80]!r}") from error
    return {"delays": delays, "directions": directions}


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    delay = options.get("delay", {})
    return {
        "delay_s": delay.get("delay", 0.0),
        "jitter_s": delay.get("jitter", 0.0),
        "loss": options.get("loss-random", {}).get("loss", 0.0),
        "slots": options["limit"],
        # How long frames waited is not known.
        **dict.fromkeys(("wait_least_s", "wait_most_s", "left_out")),
    }


def _counters(handed: Mapping[str, Any], queue: Mapping[str, Any]) -> dict[str, int]:
    arrived, refused, left = handed["packets"], handed["overlimits"], queue["packets"]
    return {
        "frames_in": arrived,
        "frames_out": left,
        "dropped": refused,
        # In traffic, frames move between the two readings.
        "lost": max(0, arrived - left - queue["qlen"] - refused),
    }


def _netem(middle: Middle, settings: DelaySettings) -> str:
    words = f"netem limit {middle.slots} delay {settings.delay_s * 1e6:.0f}us"
    if settings.jitter_s:
        words += f" {settings.jitter_s * 1e6:.0f}us"
    return f"{words} loss {settings.loss * 100:.6f}% rate {_ORDERING_RATE}"
