"""The gates of impairments: whether all happened when they were planned, and met something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controllers.impairments.base import NOT_MEASURED, STILL_IN_FORCE
from controllers.impairments.parameters import LEGS_OF
from testbed.verdict.gate import Gate, compared, not_applicable, not_measured, worst

Events = Sequence[Mapping[str, Any]]


def lateness(events: Events, config: Mapping[str, Any]) -> Gate:
    """The latest begin or end of all."""
    # One whose leg ended before it was due is skipped, which the note counts. One that was due
    # before it was skipped was late. One that was skipped because the one before of the same entry
    # was still in force is missing.
    name, key = "impairment lateness (s)", "impairment_late_s"
    limit, planned = config["limits"][key], config["impairments"]
    if not planned:
        return not_applicable(name, key, limit, "there is no impairment")
    late = [(each["acknowledged_s"] - each["planned_s"], _place(each)) for each in events]
    for each in events:
        if (late_s := each.get("details", {}).get("late_max_s")) is not None:
            late.append((late_s, f"a change of {each['name']}"))
    early = Counter(each["name"] for each in events if _ended_before(each))
    note = "; ".join(
        f"{count} of {name} skipped, since their leg or the run ended before they were due"
        for name, count in early.items()
    )
    missing = "; ".join(_missing(events, planned))
    if not late:
        return not_measured(name, key, limit, missing or "no impairment was due")
    value, where = worst(late)
    value, where = (value, where) if value > 0 else (0.0, "")
    found = compared(name, key, value, limit, where=where, note=note, missing=missing)
    # How long rounds last hardly differs from one attempt to the next.
    overlaps = found.value is None and any(map(_still_in_force, events))
    return replace(found, repeats=overlaps)


def _missing(events: Events, planned: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What should have happened and did not."""
    told = Counter((each["name"], each["action"]) for each in events)
    for entry in planned:
        name = entry["name"]
        in_force = sum(_still_in_force(each) for each in events if each["name"] == name)
        if entry.get("rounds") is not None:
            due = len(entry["rounds"]) * len(LEGS_OF[entry["leg"]])
        else:
            due = len(entry["at_s"])
        begun, ended, skipped = (told[name, each] for each in ("begin", "end", "skipped"))
        if begun + skipped < due:
            lost = due - begun - skipped
            yield f"{lost} of {due} occurrences of {name} neither began nor were skipped"
        if in_force:
            yield (
                f"{in_force} of {due} occurrences of {name} did not begin, since the one before "
                "was still in force"
            )
        if ended < begun:
            yield f"{begun - ended} of {begun} occurrences of {name} did not end"
        if due and not begun:
            yield f"no occurrence of {name} began"


def _ended_before(event: Mapping[str, Any]) -> bool:
    return bool(event["action"] == "skipped" and event["acknowledged_s"] < event["planned_s"])


def _still_in_force(event: Mapping[str, Any]) -> bool:
    return bool(event["action"] == "skipped" and event.get("details", {}).get(STILL_IN_FORCE))


def _place(event: Mapping[str, Any]) -> str:
    when = f" in round {event['round']}" if event.get("round", -1) >= 0 else ""
    return f"{event['action']} of {event['name']}{when}"


def met_nothing(events: Events, limits: Mapping[str, Any]) -> Gate:
    """The number of entries none of whose occurrences met anything."""
    # One of several occurrences may fall into a pause: the note tells how many did, and which kinds
    # cannot tell what they met, such as a link that goes down or a crash.
    name, key = "impairments that met nothing", "impairments_unmet"
    met: dict[str, list[int]] = {}
    silent: set[str] = set()
    unknown: dict[str, str] = {}
    for each in events:
        why = (each.get("details") or {}).get(NOT_MEASURED)
        if each["action"] != "end":
            continue
        if why:
            unknown[each["name"]] = f"{each['name']} was not measured: {why}"
        elif each.get("met") is not None:
            met.setdefault(each["name"], []).append(each["met"])
        else:
            silent.add(str(each["kind"]))
    missing = "; ".join(unknown.values())
    untold = [f"not known of {', '.join(sorted(silent))}, which count nothing"] if silent else []
    if not met and missing:
        return not_measured(name, key, limits[key], missing, where=", ".join(unknown))
    if not met:
        why = "; ".join(["no impairment began that counts what it meets", *untold])
        return not_applicable(name, key, limits[key], why)
    unmet = [entry for entry, counts in met.items() if not any(counts)]
    pauses = [
        f"{counts.count(0)} of {len(counts)} occurrences of {entry} met nothing"
        for entry, counts in met.items()
        if entry not in unmet and 0 in counts
    ]
    note = "; ".join([*pauses, *untold])
    where = ", ".join(unmet)
    found = compared(name, key, len(unmet), limits[key], where=where, note=note, missing=missing)
    return replace(found, repeats=True)
