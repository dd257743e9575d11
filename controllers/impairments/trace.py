"""`trace`: replays a direction's recorded rate, delay, jitter and loss, from a file.

CSV has one change a line, which holds from its `t_s` on. In Mahimahi's format each line is a time
at which the link could deliver a packet (R. Netravali et al., USENIX ATC 2015).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from controllers.impairments.base import Effect, LabAccess, lines_of_file
from controllers.impairments.link import ChangedDirection, NewSettings, too_much_jitter
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES
from testbed.shared.jsonl import JsonLinesWriter
from testbed.shared.named_sections import folders

LOG = "traces.jsonl"
# One full frame takes 0.12 s at this rate. A trace's lower ones, 0 included, become this one.
SMALLEST_RATE_BPS = 100_000
SHORTEST_S = 0.001
MOST_CHANGES = 20_000
LARGEST = {"t_s": 1e6, "rate_bps": 10e9, "delay_s": 10.0, "jitter_s": 10.0, "loss": 1.0}
_WINDOW_MS = 50
_LONGEST_MS = MOST_CHANGES * _WINDOW_MS
Changes = dict[str, list[float]]


def read_trace(name: str, folders: Sequence[Path]) -> dict[str, Any]:
    """Read `changes` and `length_s` of a file; one whose first line has a letter is CSV."""
    lines = lines_of_file(name, folders)
    changes, length_s = _csv(lines) if re.search("[A-Za-z]", lines[0][1]) else _mahimahi(lines)
    if "rate_bps" in changes:
        if (fastest := max(changes["rate_bps"])) < SMALLEST_RATE_BPS:
            raise ValueError(
                f"{name}: rate_bps: {fastest:g}: the highest of the file; "
                f"valid: at least one of {SMALLEST_RATE_BPS} or more, in bit/s"
            )
        changes["rate_bps"] = [max(SMALLEST_RATE_BPS, rate) for rate in changes["rate_bps"]]
    return {"changes": changes, "length_s": length_s}


def _csv(lines: Sequence[tuple[str, str]]) -> tuple[Changes, float]:
    place, header = lines[0]
    columns = [part.strip() for part in header.split(",")]
    _check_columns(columns, place)
    if len(lines) < 2:
        raise ValueError(f"{place}: no line follows the names of the columns")
    changes: Changes = {column: [] for column in columns}
    for place, line in lines[1:]:
        values = line.split(",")
        if len(values) != len(columns):
            raise ValueError(f"{place}: {len(values)} values; valid: {len(columns)}")
        for column, value in zip(columns, values, strict=True):
            try:
                changes[column].append(float(value))
            except ValueError:
                text = f"{place}: {column}: {value.strip()!r}: valid: a number, without its unit"
                raise ValueError(text) from None
    _check_values(changes, [place for place, _ in lines[1:]])
    times = changes["t_s"]
    # The last values hold as long as those before them.
    return changes, times[-1] + (times[-1] - times[-2] if len(times) > 1 else 1.0)


def _mahimahi(lines: Sequence[tuple[str, str]]) -> tuple[Changes, float]:
    """Average the opportunities of each window to a rate."""
    times_ms = [0]
    for place, line in lines:
        last_ms = times_ms[-1]
        if not (line.isdecimal() and last_ms <= int(line) <= _LONGEST_MS):
            raise ValueError(
                f"{place}: {line!r}: valid: whole milliseconds from {last_ms} to {_LONGEST_MS}"
            )
        times_ms.append(int(line))
    length_ms = times_ms[-1]
    if length_ms == 0:
        raise ValueError(f"{place}: 0: the last time is the trace's length; valid: 1 or more")
    # A rest shorter than half a window belongs to the last one.
    windows = max(1, (length_ms + _WINDOW_MS // 2) // _WINDOW_MS)
    counts = Counter(min(windows - 1, time_ms // _WINDOW_MS) for time_ms in times_ms[1:])
    begins_ms = [number * _WINDOW_MS for number in range(windows)]
    rates_bps = [
        float(round(8000 * ETHERNET_FRAME_BYTES * counts[number] / (end_ms - begin_ms)))
        for number, (begin_ms, end_ms) in enumerate(itertools.pairwise([*begins_ms, length_ms]))
    ]
    changes = {"t_s": [begin_ms / 1000 for begin_ms in begins_ms], "rate_bps": rates_bps}
    return changes, length_ms / 1000


def _check_columns(columns: Sequence[str], place: str) -> None:
    others = [*LARGEST][1:]
    if len(columns) < 2 or "t_s" not in columns or not Counter(columns) <= Counter(LARGEST.keys()):
        raise ValueError(
            f"{place}: columns {', '.join(columns)}; valid: t_s and at least one of "
            f"{', '.join(others)}, each once, with commas between"
        )


def _check_values(changes: Changes, places: Sequence[str]) -> None:
    """Raise ValueError, which begins with the place of the change that is wrong."""
    earliest_s = 0.0
    for place, values in zip(places, zip(*changes.values(), strict=True), strict=True):
        for column, value in zip(changes, values, strict=True):
            least = earliest_s if column == "t_s" else 0.0
            if not max(0.0, least - 1e-6) <= value <= LARGEST[column]:
                raise ValueError(
                    f"{place}: {column}: {value:g}: valid: {least:g} to {LARGEST[column]:g}"
                )
            if column == "t_s":
                earliest_s = value + SHORTEST_S


class TraceParameters(NewSettings):
    """A file, or what it is resolved to: `changes`, which repeat after `length_s`."""

    file: str | None = Field(
        default=None,
        description="CSV with t_s and any of rate_bps, delay_s, jitter_s, loss; or Mahimahi's "
        "format, one time in milliseconds for each packet of 1500 bytes",
    )
    changes: Changes | None = Field(
        default=None, description="the columns of a file, in its place; a list for each"
    )
    length_s: float | None = Field(
        default=None, gt=0, le=1e6, description="of the changes, which repeat then; of a file: its"
    )

    @property
    def sets_rate(self) -> Literal["one way", "both ways", ""]:
        return "one way" if "rate_bps" in (self.changes or {}) else ""

    @property
    def changes_middle(self) -> Collection[str]:
        return {"delay_s", "jitter_s", "loss"} & set(self.changes or {})

    def longest_wait_s(self, link: Mapping[str, Any]) -> float:
        return max(map(sum, self._waits_s(link)))

    def _waits_s(self, link: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
        """Delay and jitter after each change; what has no column is the link's."""
        assert self.changes is not None
        columns = (
            self.changes.get(key, itertools.repeat(link[key], len(self.changes["t_s"])))
            for key in ("delay_s", "jitter_s")
        )
        return zip(*columns, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _read_file(cls, entry: Any, info: ValidationInfo) -> Any:
        """Take the content of a file, whatever its place; without a duration it plays once."""
        if not isinstance(entry, dict):
            return entry
        document = dict(entry)
        if isinstance(document.get("file"), str):
            for key in ("changes", "length_s"):
                if document.get(key) is not None:
                    raise ValueError(f"{key}: excludes file")
            try:
                document |= {"file": None, **read_trace(document["file"], folders(info))}
            except ValueError as error:
                raise ValueError(f"file: {error}") from None
        if document.get("at_s") is not None and document.get("duration_s") is None:
            document["duration_s"] = document.get("length_s")
        return document

    @model_validator(mode="after")
    def _changes_fit(self) -> TraceParameters:
        if self.changes is None or self.length_s is None:
            raise ValueError("needs file, or changes with length_s")
        _check_columns(list(self.changes), "changes")
        lengths = {len(change) for change in self.changes.values()}
        if len(lengths) > 1 or not 0 < max(lengths) <= MOST_CHANGES:
            raise ValueError(f"changes: columns must be of one length, 1 to {MOST_CHANGES}")
        _check_values(self.changes, ["changes"] * max(lengths))
        least_s = self.changes["t_s"][-1] + SHORTEST_S
        if self.length_s < least_s - 1e-6:
            raise ValueError(f"length_s: {self.length_s:g}; valid: {least_s:g} or more")
        return self

    def check_link(self, link: Mapping[str, Any]) -> None:
        assert self.changes is not None
        times, rates = self.changes["t_s"], self.changes.get("rate_bps", [0.0])
        if (fastest := max(rates)) > link["rate_bps"]:
            raise ValueError(
                f"changes: at {times[rates.index(fastest)]:g} s: {fastest:.0f} bit/s; valid: up to "
                f"{link['rate_bps']}, the link's rate_bps, at which it is calibrated"
            )
        for at_s, (delay_s, jitter_s) in zip(times, self._waits_s(link), strict=True):
            if words := too_much_jitter(delay_s, jitter_s, self.changes):
                raise ValueError(
                    f"changes: at {at_s:g} s: {words} (what has no column is the link's)"
                )

    @property
    def settings(self) -> dict[str, float]:
        at_s, values = next(self.due())
        return {} if at_s else values

    def due(self) -> Iterator[tuple[float, dict[str, float]]]:
        """Yield the times, in seconds after its begin and without end, and the values from then."""
        assert self.changes is not None and self.length_s is not None
        columns = {key: column for key, column in self.changes.items() if key != "t_s"}
        for lap in itertools.count():
            for row, at_s in enumerate(self.changes["t_s"]):
                yield lap * self.length_s + at_s, {key: columns[key][row] for key in columns}


class Trace(ChangedDirection[TraceParameters]):
    changes_rates = "recorded"
    ticks: ClassVar[bool] = True

    def __init__(self, parameters: TraceParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._log = JsonLinesWriter(lab.records / LOG)
        self._late_s: list[float] = []
        self._began_s = 0.0

    def begin(self) -> None:
        self._late_s = []
        now_s = self.lab.now_s()
        super().begin()
        self._changed(now_s)
        self._due = ((at_s, values) for at_s, values in self.parameters.due() if at_s)
        self._next = next(self._due)
        self._began_s = 0.0

    def tick(self, elapsed_s: float) -> float:
        """Make the changes that are due; return the time until the next one."""
        now_s = self.lab.now_s()
        self._began_s = self._began_s or now_s - elapsed_s
        while self._began_s + self._next[0] <= now_s:
            self._link.set(self._next[1])
            self._changed(self._began_s + self._next[0])
            self._next = next(self._due)
            now_s = self.lab.now_s()
        return self._began_s + self._next[0] - now_s

    def end(self) -> None:
        now_s = self.lab.now_s()
        super().end()
        self._changed(now_s, is_planned=False)

    def effect(self) -> Effect:
        details = {"changes": len(self._late_s), "late_max_s": max(self._late_s, default=0.0)}
        return replace(super().effect(), details=details)

    def _changed(self, planned_s: float, *, is_planned: bool = True) -> None:
        made_s = self.lab.now_s()
        if is_planned:
            self._late_s.append(made_s - planned_s)
        self._log.write(
            {
                "name": self.parameters.label,
                "link": "->".join(self._link.way),
                "planned_s": planned_s,
                "made_s": made_s,
                **self.lab.links.now(*self._link.way),
            }
        )
