"""`trace`: replays a direction's recorded rate, delay, jitter and loss, from a file.

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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, ValidationInfo, model_validator

from controllers.impairments.base import Effect, LabAccess, lines_of_file
from controllers.impairments.link import ChangedDirection, Direction
from controllers.impairments.parameters import LONGEST_S, ImpairmentParameters
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES
from testbed.shared import units
from testbed.shared.jsonl import JsonLinesWriter
from testbed.shared.named_sections import folders
from testbed.shared.registry import one_of

LOG = "traces.jsonl"
# One full frame takes 0.12 s at this rate. A trace's lower ones, 0 included, become this one.
SMALLEST_RATE_BPS = 100_000
SHORTEST_S = 0.001
MOST_CHANGES = 20_000
LARGEST = {"t_s": math.inf, "rate_bps": 10e9, "delay_s": 10.0, "jitter_s": 10.0, "loss": 1.0}
Changes = dict[str, list[float]]


class Recorded(NamedTuple):
    """The changes, a list for each column, and how long it takes until they repeat."""

    changes: Changes
    length_s: float


def read_trace(name: str, folders: Sequence[Path], *, window_s: float) -> Recorded:
    """The trace in a file; a first line with a letter makes it CSV, else `window_s` averages."""
    lines = lines_of_file(name, folders)
    first = lines[0][1]
    recorded = _csv(lines) if any(each.isalpha() for each in first) else _mahimahi(lines, window_s)
    if len(recorded.changes["t_s"]) > MOST_CHANGES:
        count = f"{len(recorded.changes['t_s'])} changes; valid: up to {MOST_CHANGES}"
        raise ValueError(f"{name}: {count}, in several files or with a larger window_s")
    return recorded


def _csv(lines: Sequence[tuple[str, str]]) -> Recorded:
    place, header = lines[0]
    if "," not in header and (separator := re.search(r"[;\t]", header)):
        raise ValueError(f"{place}: {separator[0]!r} between columns; valid: commas")
    columns = [each.strip() for each in header.split(",")]
    for column in columns:
        if column not in LARGEST:
            stem = column.partition("_")[0]
            near = [each for each in LARGEST if each.partition("_")[0] == stem]
            valid = f"valid: {near[0]}" if near else one_of(column, LARGEST)
            raise ValueError(f"{place}: unknown column {column!r}; {valid}")
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
    return Recorded(changes=raised(changes), length_s=times[-1] + last_s)


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


def _mahimahi(lines: Sequence[tuple[str, str]], window_s: float) -> Recorded:
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
    if problem := wrong({"t_s": begins, "rate_bps": rates}):
        raise ValueError(problem)
    return Recorded(changes=raised({"t_s": begins, "rate_bps": rates}), length_s=length_s)


class TraceParameters(ImpairmentParameters):
    """A file, or what it is resolved to: `changes`, which repeat after `length_s`."""

    file: str | None = Field(
        default=None,
        description="CSV with t_s and any of rate_bps, delay_s, jitter_s, loss; or Mahimahi's "
        "format, one time in milliseconds for each packet of 1500 bytes",
    )
    window_s: float = Field(
        default=0.05,
        ge=0.02,
        le=10,
        description="over which the packets of Mahimahi's format are averaged to a rate",
    )
    start_s: float = Field(default=0.0, ge=0, description="where in the trace it begins")
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
    def _read_file(cls, given: Any, info: ValidationInfo) -> Any:
        """Of a file, its content counts and not its place; without a duration it plays once."""
        if not isinstance(given, dict):
            return given
        document = dict(given)
        if isinstance(document.get("file"), str):
            for key in ("changes", "length_s"):
                if document.get(key) is not None:
                    raise ValueError(f"{key}: excludes file")
            window_s = document.get("window_s", cls.model_fields["window_s"].default)
            if not isinstance(window_s, int | float) or not window_s > 0:
                return given  # the key's own rule says what is wrong
            try:
                recorded = read_trace(document["file"], folders(info), window_s=window_s)
            except ValueError as error:
                raise ValueError(f"file: {error}") from None
            document |= {"file": None, **recorded._asdict()}
        length_s, start_s = document.get("length_s"), document.get("start_s", 0)
        is_known = isinstance(length_s, int | float) and isinstance(start_s, int | float)
        if document.get("at_s") is not None and document.get("duration_s") is None and is_known:
            document["duration_s"] = max(length_s - start_s, SHORTEST_S)
            if document["duration_s"] > LONGEST_S:
                raise ValueError(
                    f"file: it lasts {length_s:g} s; valid: up to {LONGEST_S:g} s, or with a "
                    "duration_s"
                )
        return document

    @model_validator(mode="after")
    def _changes_fit(self) -> TraceParameters:
        if self.changes is None or self.length_s is None:
            raise ValueError("needs file, or changes with length_s")
        columns = list(self.changes)
        if unknown := [each for each in columns if each not in LARGEST]:
            valid = ", ".join(LARGEST)
            raise ValueError(f"changes: unknown column {unknown[0]!r}; valid: {valid}")
        if "t_s" not in columns or len(columns) < 2:
            raise ValueError("changes: needs t_s and at least one other column")
        lengths = {len(each) for each in self.changes.values()}
        if len(lengths) > 1 or not 0 < max(lengths) <= MOST_CHANGES:
            most = MOST_CHANGES
            raise ValueError(f"changes: columns must be of one length, 1 to {most}")
        if problem := wrong(self.changes):
            raise ValueError(f"changes: {problem}")
        least_s = self.changes["t_s"][-1] + SHORTEST_S
        if self.length_s < least_s * 0.999999:
            raise ValueError(f"length_s: {self.length_s:g}; valid: {least_s:g} or more")
        if self.start_s >= self.length_s:
            raise ValueError(f"start_s: {self.start_s:g}; valid: below {self.length_s:g}")
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
            if jitter_s > delay_s:
                raise ValueError(
                    f"changes: at {at_s:g} s: delay_s: {delay_s:g}; valid: {jitter_s:g} or more, "
                    "the link's jitter_s"
                )

    def after(self, played_s: float) -> Iterator[tuple[float, dict[str, float]]]:
        """When the link gets which values, from `played_s` after its begin on and without end."""
        assert self.changes is not None and self.length_s is not None
        for lap in itertools.count():
            for row, at_s in enumerate(self.changes["t_s"]):
                due_s = lap * self.length_s + at_s - self.start_s
                if due_s >= played_s:
                    yield due_s, self._values(row)

    def at_begin(self) -> dict[str, float]:
        """The values in force where it begins; none before its first change."""
        assert self.changes is not None
        row = bisect.bisect_right(self.changes["t_s"], self.start_s) - 1
        return self._values(row) if row >= 0 else {}

    def _values(self, row: int) -> dict[str, float]:
        assert self.changes is not None
        return {key: each[row] for key, each in self.changes.items() if key != "t_s"}


class Trace(ChangedDirection[TraceParameters]):
    """Makes each change when it is due."""

    changes_rates = "recorded"
    ticks: ClassVar[bool] = True

    def __init__(self, parameters: TraceParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._log = JsonLinesWriter(lab.records / LOG)
        self._late_s: list[float] = []
        self._began_s = 0.0

    def new_settings(self, at: Direction) -> dict[str, Any]:
        return self.parameters.at_begin()

    def begin(self) -> None:
        self._late_s = []
        now_s = self.lab.now_s()
        super().begin()
        self._changed(now_s)
        self._due = self.parameters.after(1e-9)
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
        """The packets that came to the queue meanwhile, and how late the latest change was."""
        details = {"changes": len(self._late_s), "late_max_s": max(self._late_s, default=0.0)}
        return replace(super().effect(), details=details)

    def _changed(self, planned_s: float, *, is_planned: bool = True) -> None:
        """Note what the link has now."""
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
