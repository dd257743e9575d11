"""Recorded conditions of a link, from a CSV file or in Mahimahi's format.

    t_s,rate_bps,delay_s,loss        one change a line: from t_s on the link has these values
    0,20000000,0.020,0
    1.5,8000000,0.045,0.01

In Mahimahi's format each line is a time in milliseconds at which the link could deliver one packet
of 1500 bytes, and the last is the trace's length (R. Netravali et al., "Mahimahi: accurate
record-and-replay for HTTP", USENIX ATC 2015). Opportunities of a window are averaged to a rate.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from controllers.impairments import given_file
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES
from testbed.shared import units
from testbed.shared.registry import one_of

# One full frame takes 0.12 s at this rate. A trace's lower ones, 0 included, become this one.
SMALLEST_RATE_BPS = 100_000
SHORTEST_S = 0.001
LARGEST_RATE_BPS = 10_000_000_000
MOST_CHANGES = 20_000
_LONGEST_DELAY_S = 10
_UNITS = {"rate_bps": LARGEST_RATE_BPS, "delay_s": _LONGEST_DELAY_S, "jitter_s": _LONGEST_DELAY_S}
LARGEST: dict[str, float] = {"t_s": math.inf, **_UNITS, "loss": 1}
Changes = dict[str, list[float]]


class Trace(NamedTuple):
    """The changes, a list for each column, and how long it takes until they repeat."""

    changes: Changes
    length_s: float
    places: list[str]  # in the file, for messages


def read(name: str, folders: Sequence[Path], *, window_s: float) -> Trace:
    """The trace in a file; a first line with a letter makes it CSV, else `window_s` averages."""
    lines = given_file.lines(name, folders)
    first = lines[0][1]
    found = _csv(lines) if any(each.isalpha() for each in first) else _mahimahi(lines, window_s)
    if len(found.changes["t_s"]) > MOST_CHANGES:
        wanted = f"{len(found.changes['t_s'])} changes; valid: up to {MOST_CHANGES}"
        raise ValueError(f"{name}: {wanted}, in several files or with a larger window_s")
    return found


def _csv(lines: Sequence[tuple[str, str]]) -> Trace:
    place, header = lines[0]
    if "," not in header and (found := re.search(r"[;\t]", header)):
        raise ValueError(f"{place}: {found[0]!r} between columns; valid: commas")
    columns = [each.strip() for each in header.split(",")]
    for column in columns:
        if column not in LARGEST:
            stem = column.partition("_")[0]
            near = [each for each in LARGEST if each.partition("_")[0] == stem]
            told = f"valid: {near[0]}" if near else one_of(column, LARGEST)
            raise ValueError(f"{place}: unknown column {column!r}; {told}")
        if columns.count(column) > 1:
            raise ValueError(f"{place}: column {column!r} is there twice")
    if "t_s" not in columns or len(columns) < 2:
        raise ValueError(f"{place}: valid: t_s and at least one of {', '.join([*LARGEST][1:])}")
    if len(lines) < 2:
        raise ValueError(f"{place}: no line follows the names of the columns")
    changes: Changes = {column: [] for column in columns}
    for place, line in lines[1:]:
        values = line.split(",")
        if len(values) != len(columns):
            raise ValueError(f"{place}: {len(values)} values; valid: {len(columns)}")
        for column, value in zip(columns, values, strict=True):
            changes[column].append(_number(place, column, value.strip()))
        problem = wrong({key: each[-2:] for key, each in changes.items()})
        if problem:
            raise ValueError(f"{place}: {problem}")
    places = [place for place, _ in lines[1:]]
    rates = changes.get("rate_bps")
    if rates and 0 < (fastest := max(rates)) < SMALLEST_RATE_BPS:
        raise ValueError(
            f"{places[rates.index(fastest)]}: rate_bps: {fastest:g}: the highest of the file; "
            f"valid: at least one of {SMALLEST_RATE_BPS} or more, in bit/s"
        )
    times = changes["t_s"]
    # The last values hold as long as those before them.
    last_s = times[-1] - times[-2] if len(times) > 1 else 1.0
    return Trace(changes=raised(changes), length_s=times[-1] + last_s, places=places)


def _number(place: str, column: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        unit = units.of(column)
        words = f" in {unit.words}, without its unit" if unit else ""
        raise ValueError(f"{place}: {column}: {value!r}: valid: a number{words}") from None


def wrong(changes: Changes) -> str:
    """What is wrong with changes, in words; nothing: "" """
    for column, values in changes.items():
        for value in values:
            if not (math.isfinite(value) and 0 <= value <= LARGEST[column]):
                most, unit = LARGEST[column], units.of(column)
                valid = "0 or more" if math.isinf(most) else f"0 to {most:g}"
                return f"{column}: {value:g}: valid: {valid}{f', in {unit.words}' if unit else ''}"
    times = changes["t_s"]
    for before, after in itertools.pairwise(times):
        if after - before < SHORTEST_S * 0.999:
            least_s = before + SHORTEST_S
            return f"t_s: {after:g}: valid: {least_s:g} or more, later than the change before"
    for delay_s, jitter_s in zip(
        changes.get("delay_s", [0.0] * len(times)), changes.get("jitter_s", ()), strict=False
    ):
        if jitter_s > delay_s:
            return f"jitter_s: {jitter_s:g}: valid: up to {delay_s:g}, the delay_s beside it"
    return ""


def raised(changes: Changes) -> Changes:
    """The changes with rates that a link can have."""
    if "rate_bps" not in changes:
        return changes
    return {**changes, "rate_bps": [max(SMALLEST_RATE_BPS, each) for each in changes["rate_bps"]]}


def _mahimahi(lines: Sequence[tuple[str, str]], window_s: float) -> Trace:
    times_ms: list[int] = []
    for place, line in lines:
        if not line.isdecimal() or len(line) > 10:
            raise ValueError(f"{place}: {line!r}: valid: a time in whole milliseconds")
        times_ms.append(int(line))
        if len(times_ms) > 1 and times_ms[-1] < times_ms[-2]:
            raise ValueError(f"{place}: {line}: valid: {times_ms[-2]} or more, the time before")
    length_s = times_ms[-1] / 1000
    if length_s == 0:
        raise ValueError(f"{place}: 0: the last time is the trace's length; valid: 1 or more")
    # A rest shorter than half a window belongs to the last one.
    windows = max(1, math.floor(length_s / window_s + 0.5))
    if windows > MOST_CHANGES:
        raise ValueError(
            f"{place}: {windows} windows of {window_s:g} s; valid: up to {MOST_CHANGES}"
        )
    counts = [0] * windows
    for time_ms in times_ms:
        counts[min(windows - 1, int(time_ms / 1000 / window_s + 1e-9))] += 1
    begins = [round(number * window_s, 6) for number in range(windows)]
    rates = [
        float(round(count * ETHERNET_FRAME_BYTES * 8 / (end - begin)))
        for count, begin, end in zip(counts, begins, [*begins[1:], length_s], strict=True)
    ]
    firsts = [bisect.bisect_left(times_ms, begin * 1000 - 1e-6) for begin in begins]
    places = [lines[min(first, len(lines) - 1)][0] for first in firsts]
    for where, begin, rate in zip(places, begins, rates, strict=True):
        if rate > LARGEST_RATE_BPS:
            raise ValueError(
                f"{where}: {rate:g} bit/s from {begin:g} s on; valid: up to {LARGEST_RATE_BPS}"
            )
    changes = raised({"t_s": begins, "rate_bps": rates})
    return Trace(changes=changes, length_s=length_s, places=places)
