"""The gates of delayed links: whether frames left on time, after the delay that was configured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from testbed.lab.delay import Middle
from testbed.lab.delay.relay import LEAST_FOR_MEAN
from testbed.lab.network import LabInfo, LinkEnds
from testbed.verdict.gates import Finding, worst
from testbed.verdict.link_changes import LinkChanges, Way

FILE = "delay.json"  # written as the training ends
# In all but one of a million cases a mean of chance values is less than so many deviations off.
_CHANCE_DEVIATIONS = 4.9
_ON_THEIR_WAY_S = 0.1  # frames need less from a queue to the relay

_NO_DELAY = "no link has a delay, a jitter or a loss"


def relay_lateness(directory: Path, network: LabInfo) -> Finding:
    record, finding = _of_relay(directory, network)
    if finding is not None:
        return finding
    stretch = record["worst"]
    return Finding(
        value=stretch["late_p99_s"],
        where=f"{stretch['link']} from {stretch['from']}",
        note=f"of {stretch['frames']} frames; scheduled as {record['scheduling']}",
    )


def latest_frame(directory: Path, network: LabInfo) -> Finding:
    record, finding = _of_relay(directory, network)
    if finding is not None:
        return finding
    value_s = max(record["late_max_s"], record["early_max_s"])
    return Finding(value=value_s, note=f"scheduled as {record['scheduling']}")


def _of_relay(directory: Path, network: LabInfo) -> tuple[Mapping[str, Any], Finding | None]:
    record, finding = _record(directory, network)
    if finding is not None:
        return record, finding
    if record["by"] != "relay":
        order = "" if record["in_order"] else "; frames may overtake each other (in_order is false)"
        why = f"the kernel's netem delays the links, and does not say how late it is{order}"
        return record, Finding(note=why)
    if record["worst"] is not None:
        return record, None
    why = "no frame crossed a delayed link" if record["delays"] else _NO_DELAY
    middles = [Middle.of_link(asdict(link)) for link in network.links if link.middle]
    # What a script has changed need not have carried anything.
    idle = all(middle.idle for middle in middles)
    return record, Finding(note=why) if idle else Finding(missing=why)


def _record(directory: Path, network: LabInfo) -> tuple[Mapping[str, Any], Finding | None]:
    if network.delayed_by is None:
        return {}, Finding(note=_NO_DELAY)
    try:
        return json.loads((directory / FILE).read_text(encoding="utf-8")), None
    except (OSError, ValueError) as error:
        return {}, Finding(missing=f"{FILE} cannot be read: {error}")


def _bypassed(
    directory: Path, network: LabInfo, changes: LinkChanges, record: Mapping[str, Any]
) -> str:
    """Name the directions that were changed by hand and whose frames never came to be delayed."""
    came = {(way["link"], way["from"]): way["frames_in"] for way in record["directions"]}
    until_s, missed = record["at_s"] - _ON_THEIR_WAY_S, []
    for way in sorted(changes.of(network, "delay_s", "jitter_s", "loss")):
        since_s = changes.spans(way)[-1][1]
        if not came.get(way) and (packets := _sent_packets(directory, way, since_s, until_s)):
            missed.append(
                f"{way[0]} from {way[1]} was set by hand, its queue sent {packets} packets "
                "afterwards, and none came where they are delayed or lost"
            )
    return ", ".join(missed)


def _sent_packets(directory: Path, way: Way, since_s: float, until_s: float) -> int:
    """Count what a direction's queue sent in a time; 0 where no sample tells."""
    import polars as pl

    try:
        rows = pl.read_parquet(directory / "samples" / "queues.parquet").filter(
            pl.col("link") == way[0],
            pl.col("from") == way[1],
            pl.col("t_s").is_between(since_s, until_s),
        )
    except (OSError, pl.exceptions.PolarsError):
        return 0  # the gates of the links' rates then stop the run
    sent = rows["sent_packets"]
    return int(sent[-1] - sent[0]) if len(sent) else 0


def delay(
    directory: Path, network: LabInfo, changes: LinkChanges, limits: Mapping[str, Any]
) -> Finding:
    record, finding = _record(directory, network)
    if finding is not None:
        return replace(finding, key="delay_error_s")
    # Where a delay was set by hand, only the setting at the end is compared, with the last one set.
    changed = changes.of(network, "delay_s", "jitter_s")
    bypassed = _bypassed(directory, network, changes, record)
    links = {link.name: link for link in network.links}
    errors: dict[str, tuple[float, float, str]] = {}
    by_hand = ", ".join(f"{link} from {sender}" for link, sender in sorted(changed))
    by_hand = f"set by hand, so waits are not compared: {by_hand}" if by_hand else ""
    for way in record["delays"]:
        link = links[way["link"]]
        if (by_user := changed.get((way["link"], way["from"]))) is not None:
            link = replace(link, **by_user)
            way = {**way, "wait_least_s": None, "wait_most_s": None}
        error_s, _ = worst((error_s, "") for error_s in _errors_s(way, link))
        # A share of the delay, or a time where that is more.
        share_s, least_s = limits["delay_error"] * link.delay_s, limits["delay_error_s"]
        limit_s, key = worst([(least_s, "delay_error_s"), (share_s, "delay_error")])
        errors[f"{link.name} from {way['from']}"] = error_s, limit_s, key
    if not errors:
        why = by_hand or "no link has a delay"
        return Finding(key="delay_error_s", missing=bypassed, note=why)
    _, place = worst((error_s / limit_s, place) for place, (error_s, limit_s, _) in errors.items())
    error_s, limit_s, key = errors[place]
    notes = ["what netem was set to in the end; how long frames waited is not known"]
    if record["by"] == "relay":
        few = sum(way["wait_most_s"] is None for way in record["delays"])
        left_out = sum(way["left_out"] or 0 for way in record["delays"])
        notes = [f"{few} of {len(errors)} directions carried too few frames to tell"] if few else []
        if left_out:
            notes.append(f"{left_out} frames left out, which left while impairments changed delays")
    return Finding(
        value=error_s,
        key=key,
        limit=limit_s,
        where=place,
        note="; ".join(filter(None, (*notes, by_hand))),
        missing=bypassed,
    )


def _errors_s(way: Mapping[str, Any], link: LinkEnds) -> Iterator[float]:
    """Yield how far a direction was off: as it was set in the end, and by waits."""
    # Frames that wait for slower ones ahead raise the mean wait, up to the whole jitter, and
    # nothing lowers it but chance.
    yield abs(way["delay_s"] - link.delay_s)
    yield abs(way["jitter_s"] - link.jitter_s)
    if way["wait_most_s"] is not None:
        yield way["wait_most_s"] - link.delay_s - link.jitter_s
    if way["wait_least_s"] is not None:
        # Of an even spread from -j to j: the deviation of the mean is j / sqrt(3 n).
        chance_s = _CHANCE_DEVIATIONS * link.jitter_s / math.sqrt(3 * LEAST_FOR_MEAN)
        yield link.delay_s - way["wait_least_s"] - chance_s
