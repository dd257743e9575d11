"""The gates of delayed links: whether frames left on time, after the delay that was configured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from testbed.lab.delay import Middle
from testbed.lab.network import LabInfo, LinkEnds
from testbed.verdict.gate import Gate, compared, not_applicable, not_measured, worst

_LATE = ("relay lateness, p99 of the worst second (s)", "relay_late_s")
_LATE_MAX = ("relay lateness of a single frame (s)", "relay_late_max_s")
_DELAY = ("delay of a link in its worst quarter of a second, off by (s)", "delay_error_s")


def gates(
    record: Path,
    network: LabInfo,
    limits: Mapping[str, Any],
    *,
    changed: Mapping[tuple[str, str], Mapping[str, Any]] = MappingProxyType({}),
) -> list[Gate]:
    """Judge `delay.json`, which was written as the training ended.

    Args:
        record: its path.
        network: the lab, with the delays as configured.
        changed: directions (a link's name and its sender) whose delay was changed by hand, with
            what was set last: only the settings at the end are compared, with that.
    """

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
    delay = _delayed(found, network, limits, changed)
    if found["by"] != "relay":
        order = "" if found["in_order"] else "; frames may overtake each other (in_order is false)"
        why = f"the kernel's netem delays the links, and does not say how late it is{order}"
        return [*without(not_applicable, why, _LATE, _LATE_MAX), delay]
    if found["worst"] is None:
        why = "no frame crossed a delayed link"
        middles = [Middle.of_link(asdict(each)) for each in network.links if each.middle]
        # What a script has changed need not have carried anything.
        kind = not_applicable if all(each.rests for each in middles) else not_measured
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


def _delayed(
    found: Mapping[str, Any],
    network: LabInfo,
    limits: Mapping[str, Any],
    changed: Mapping[tuple[str, str], Mapping[str, Any]],
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
    return compared(_DELAY[0], key, error_s, limit_s, where=place, note=note)


def _errors_s(each: Mapping[str, Any], link: LinkEnds) -> Iterator[float]:
    """How far a direction was from its configuration: as it was set in the end, and by waits.

    The mean wait of a dense flow may lie anywhere within the jitter.
    """
    yield abs(each["delay_s"] - link.delay_s)
    yield abs(each["jitter_s"] - link.jitter_s)
    for mean_s in (each["wait_least_s"], each["wait_most_s"]):
        if mean_s is not None:
            yield abs(mean_s - link.delay_s) - link.jitter_s


def _delay_limit(link: LinkEnds, limits: Mapping[str, Any]) -> tuple[float, str]:
    """The limit in seconds and its key: a share of the delay, or a time where that is more."""
    share_s = limits["delay_error"] * link.delay_s
    least_s = limits["delay_error_s"]
    return (share_s, "delay_error") if share_s > least_s else (least_s, "delay_error_s")
