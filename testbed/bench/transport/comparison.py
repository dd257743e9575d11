"""What changed against an earlier run: the cases that both have, as ratios with their intervals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.bench.transport.records import INTERVALS, ends_of
from testbed.shared.yaml_input import InputError

Record = Mapping[str, Any]
# How far apart, as a factor, intervals of two runs of the same code often are: they know only
# what varies within a run. Where no link holds the pace, completion is processor time too.
OF_CPU, OF_LINK = 1.2, 1.02
# What makes a case another one, under the same name.
_PARAMETERS = (
    *("rate_bps", "added_rtt_s", "loss", "workers", "offloads", "payload_bytes", "tolerance"),
    *("repair", "congestion_control", "checksum", "chunk_bytes", "peer"),
)
_MACHINE = ("cpu", "cpus", "kernel")
_HOT_PATHS = {True: "the compiled hot path", False: "numpy alone", None: "an unknown hot path"}
_MOST_LOAD = 0.5  # processes per processor: what two runs' loads may differ by without a word


@dataclass(frozen=True)
class Change:
    """One value of one case, over what it was."""

    ratio: float | None
    apart: bool | None


def read(path: Path, names: Iterable[str]) -> dict[str, Record]:
    """The earlier run's records of these cases, by name."""
    place = f"--compare {path}"
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{place}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{place}: is no JSON; expected what --json wrote") from None
    if not isinstance(records, list) or not all(_is_record(each) for each in records):
        raise InputError(
            f"{place}: is no list of this benchmark's cases; expected what --json wrote"
        )
    earlier = {each["case"]: each for each in records}
    common = {name: earlier[name] for name in names if name in earlier}
    if not common:
        kinds = ", ".join(sorted({name.split("/")[0] for name in earlier})) or "none at all"
        raise InputError(f"{place}: has none of these cases; its own begin with {kinds}")
    return common


def _is_record(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and isinstance(record.get("case"), str)
        and {"status", "completion_s", "machine"} <= record.keys()
    )


def remarks(earlier: Mapping[str, Record], facts: Record) -> list[str]:
    """What makes a comparison doubtful, a line for each."""
    then = next(iter(earlier.values()))["machine"]
    lines = []
    if any(record.get("interrupted") for record in earlier.values()):
        lines.append("was interrupted: it has not all cases")
    if differing := other_machine(then, facts):
        lines.append(f"was measured on another machine: {differing}")
    if then.get("compiled") != facts.get("compiled"):
        was, now = (_HOT_PATHS[each.get("compiled")] for each in (then, facts))
        lines.append(f"was measured with {was} (now {now})")
    loads = [each["load_average"][0] for each in (then, facts) if each.get("load_average")]
    if len(loads) == 2 and abs(loads[0] - loads[1]) > _MOST_LOAD * facts["cpus"]:
        lines.append(f"was measured at a load of {loads[0]:.2f} (now {loads[1]:.2f})")
    return lines


def other_machine(then: Record, facts: Record) -> str:
    """In what the machine of the earlier run differs, in words; empty: in nothing that is known."""
    differing = [key for key in _MACHINE if then.get(key) != facts.get(key)]
    return ", ".join(f"{key} {then.get(key)} (now {facts.get(key)})" for key in differing)


def of(now: Record, then: Record) -> dict[str, Change] | str:
    """The changes of a case by the record's keys; or why there are none, in words."""
    differing = [key for key in _PARAMETERS if then.get(key) != now.get(key)]
    if differing:
        key = differing[0]
        return f"another case then: {key} was {then.get(key)}, is {now.get(key)}"
    if now["status"] != "ok" or then["status"] != "ok":
        return (
            "still " + now["status"]
            if now["status"] == then["status"]
            else (f"was {then['status']}, is {now['status']}")
        )
    return {key: Change(_ratio(now, then, key), _apart(now, then, key)) for key in INTERVALS}


def _ratio(now: Record, then: Record, key: str) -> float | None:
    left, right = now.get(key), then.get(key)
    return left / right if left is not None and right else None


def _apart(now: Record, then: Record, key: str) -> bool | None:
    low, high = ends_of(key)
    if any(record.get(low) is None for record in (now, then)):
        return None
    by_chance = OF_LINK if key == "completion_s" and now["rate_bps"] is not None else OF_CPU
    return bool(max(now[low] / then[high], then[low] / now[high]) > by_chance)
