"""The gate of impairments that met nothing: a run with one of them is not the run that was planned.

What an impairment met is counted by its kind (`Effect.met`): the packets that a loss, a meter, a
blackout or a changed queue could act on, the frames or segments that a burst or a background flow
sent, how often a slowed process was stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from controllers.impairments.base import NOT_MEASURED
from testbed.verdict.gate import Gate, compared, not_applicable, not_measured

NAME, KEY = "impairments that met nothing", "impairments_unmet"


def gates(events: Sequence[Mapping[str, Any]], limits: Mapping[str, Any]) -> list[Gate]:
    """The number of entries none of whose occurrences met anything.

    One of several occurrences may fall into a pause; the note tells how many did, and which kinds
    cannot tell what they met, such as a link that goes down or a crash. An entry that should tell
    and could not, as its switch had forgotten it, leaves the gate not measured.

    Args:
        events: the records of `events/impairments.jsonl`.
    """
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
        return [not_measured(NAME, KEY, limits[KEY], missing, where=", ".join(unknown))]
    if not met:
        why = "; ".join(["no impairment began that counts what it meets", *untold])
        return [not_applicable(NAME, KEY, limits[KEY], why)]
    unmet = [name for name, counts in met.items() if not any(counts)]
    pauses = [
        f"{counts.count(0)} of {len(counts)} occurrences of {name} met nothing"
        for name, counts in met.items()
        if name not in unmet and 0 in counts
    ]
    note = "; ".join([*pauses, *untold])
    where = ", ".join(unmet)
    found = compared(NAME, KEY, len(unmet), limits[KEY], where=where, note=note, missing=missing)
    return [replace(found, repeats=True)]
