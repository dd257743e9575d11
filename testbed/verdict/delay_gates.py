"""The gates of delayed links: whether frames left on time, after the delay that was configured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from testbed.lab.delay import Middle
from testbed.lab.delay.punctuality import LEAST_FOR_MEAN
from testbed.lab.network import LabInfo, LinkEnds
from testbed.verdict.gate import Gate, compared, not_applicable, not_measured, worst
from testbed.verdict.link_changes import LinkChanges, Way

# In all but one of a million cases a mean of chance values is less than so many deviations off.
_CHANCE_DEVIATIONS = 4.9
_LEAST_DRAWN = 100
# What a queue has sent needs less to come to the relay.
_ON_THEIR_WAY_S = 0.1
_LATE = ("relay lateness, p99 of the worst second (s)", "relay_late_s")
_LATE_MAX = ("relay lateness of a single frame (s)", "relay_late_max_s")
_DELAY = ("delay of a link in its worst quarter of a second, off by (s)", "delay_error_s")


def gates(
    record: Path,
    network: LabInfo,
    limits: Mapping[str, Any],
    *,
    changes: LinkChanges = LinkChanges(),  # noqa: B008 (it holds nothing)
) -> list[Gate]:
    """Judge `delay.json`, which was written as the training ended."""

    def without(value: Callable[..., Gate], why: str, *names: tuple[str, str]) -> list[Gate]:
        return [value(name, key, limits[key], why) for name, key in names]

    none = "no link has a delay, a jitter or a loss"
    if network.delayed_by is None:
        return without(not_applicable, none, _LATE, _LATE_MAX, _DELAY)
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = f"{record.name} cannot be read: {error}"
        return without(not_measured, why, _LATE, _LATE_MAX, _DELAY)
    # Where a delay was set by hand, only the setting at the end is compared, with what was set
    # last.
    changed = changes.of(network, "delay_s", "jitter_s")
    bypassed = _bypassed(found, changes.of(network, "delay_s", "jitter_s", "loss"), changes)
    delay = _delayed(found, network, limits, changed, bypassed)
    if found["by"] != "relay":
        order = "" if found["in_order"] else "; frames may overtake each other (in_order is false)"
        why = f"the kernel's netem delays the links, and does not say how late it is{order}"
        return [*without(not_applicable, why, _LATE, _LATE_MAX), delay]
    if found["worst"] is None:
        why = "no frame crossed a delayed link"
        middles = [Middle.of_link(asdict(each)) for each in network.links if each.middle]
        # What a script has changed need not have carried anything.
        rest = all(each.rests for each in middles) and not bypassed
        kind = not_applicable if rest else not_measured
        return [*without(kind, why if found["delays"] else none, _LATE, _LATE_MAX), delay]
    return [*_late(found, limits), delay]


def _late(found: Mapping[str, Any], limits: Mapping[str, Any]) -> Iterator[Gate]:
    stretch = found["worst"]
    scheduled = f"scheduled as {found['scheduling']}"
    yield compared(
        *_LATE,
        stretch["late_p99_s"],
        limits["relay_late_s"],
        where=f"{stretch['link']} from {stretch['from']}",
        note=f"of {stretch['frames']} frames; {scheduled}",
    )
    value_s = max(found["late_max_s"], found["early_max_s"])
    yield compared(*_LATE_MAX, value_s, limits["relay_late_max_s"], note=scheduled)


def _bypassed(found: Mapping[str, Any], ways: Collection[Way], changes: LinkChanges) -> str:
    """The directions that were changed by hand and whose frames never came where they should."""
    seen = {(each["link"], each["from"]): each["frames_in"] for each in found["directions"]}
    sent = {
        way: changes.packets_after(way, found["at_s"] - _ON_THEIR_WAY_S)
        for way in sorted(ways)
        if not seen.get(way)
    }
    return ", ".join(
        f"{link} from {sender} was set by hand, its queue sent {packets} packets afterwards, and "
        "none came where they are delayed or lost"
        for (link, sender), packets in sent.items()
        if packets
    )


def _delayed(
    found: Mapping[str, Any],
    network: LabInfo,
    limits: Mapping[str, Any],
    changed: Mapping[Way, Mapping[str, Any]],
    bypassed: str,
) -> Gate:
    """The delay of every direction, as a multiple of what may be: the worst one is told."""
    links = {link.name: link for link in network.links}
    errors: dict[str, tuple[float, float, str]] = {}
    by_hand = ", ".join(f"{link} from {sender}" for link, sender in sorted(changed))
    told = f"set by hand, so waits are not compared: {by_hand}" if by_hand else ""
    for each in found["delays"]:
        link, by_user = links[each["link"]], changed.get((each["link"], each["from"]))
        if by_user is not None:
            link = replace(link, **by_user)
            each = {**each, "wait_least_s": None, "wait_most_s": None}
        error_s, _ = worst((error_s, "") for error_s in _errors_s(each, link))
        errors[f"{link.name} from {each['from']}"] = error_s, *_delay_limit(link, limits)
    if not errors and bypassed:
        return not_measured(*_DELAY, limits[_DELAY[1]], bypassed)
    if not errors:
        return not_applicable(*_DELAY, limits[_DELAY[1]], told or "no link has a delay")
    _, place = worst((error_s / limit_s, place) for place, (error_s, limit_s, _) in errors.items())
    error_s, limit_s, key = errors[place]
    few = sum(each["wait_most_s"] is None for each in found["delays"])
    left_out = sum(each["left_out"] or 0 for each in found["delays"])
    notes = [f"{few} of {len(errors)} directions carried too few frames to tell"] if few else []
    if left_out:
        notes.append(f"{left_out} frames left out, which left while impairments changed delays")
    note = "; ".join(notes)
    if found["by"] != "relay":
        note = "what netem was set to in the end; how long frames waited is not known"
    note = "; ".join(filter(None, (note, told)))
    return compared(_DELAY[0], key, error_s, limit_s, where=place, note=note, missing=bypassed)


def _errors_s(each: Mapping[str, Any], link: LinkEnds) -> Iterator[float]:
    """How far a direction was from its configuration: as it was set in the end, and by waits."""
    # Frames that wait for slower ones ahead raise the mean wait, up to the whole jitter, and
    # nothing lowers it but chance. What the frames drew, each for itself, is spread evenly over the
    # jitter.
    yield abs(each["delay_s"] - link.delay_s)
    yield abs(each["jitter_s"] - link.jitter_s)
    if each["wait_most_s"] is not None:
        yield each["wait_most_s"] - link.delay_s - link.jitter_s
    deviations_s = _CHANCE_DEVIATIONS * link.jitter_s
    if each["wait_least_s"] is not None:
        chance_s = deviations_s / math.sqrt(3 * LEAST_FOR_MEAN)
        yield link.delay_s - each["wait_least_s"] - chance_s
    if (drawn := each.get("drawn")) and drawn >= _LEAST_DRAWN:
        # Of an even spread from -j to j: the deviation of the mean is j / sqrt(3 n). That of the
        # mean square is j**2 * sqrt(4 / 45 n), so that of its root times sqrt(3) is j / sqrt(5 n).
        yield abs(each["drawn_mean_s"]) - deviations_s / math.sqrt(3 * drawn)
        yield abs(each["drawn_jitter_s"] - link.jitter_s) - deviations_s / math.sqrt(5 * drawn)


def _delay_limit(link: LinkEnds, limits: Mapping[str, Any]) -> tuple[float, str]:
    """The limit in seconds and its key: a share of the delay, or a time where that is more."""
    share_s = limits["delay_error"] * link.delay_s
    least_s = limits["delay_error_s"]
    return (share_s, "delay_error") if share_s > least_s else (least_s, "delay_error_s")
