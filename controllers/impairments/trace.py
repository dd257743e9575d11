"""`trace`: replays one direction's recorded rate, delay, jitter and loss."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from controllers.impairments import trace_file
from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.common_settings import LONGEST_S
from controllers.impairments.link_directions import direction
from controllers.impairments.temporary_settings import TemporarySettings
from testbed.shared.jsonl import JsonLinesWriter
from testbed.shared.named_sections import folders

LOG = "traces.jsonl"


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
    changes: trace_file.Changes | None = Field(
        default=None, description="the columns of a file, in its place; a list for each"
    )
    length_s: float | None = Field(
        default=None, gt=0, le=1e6, description="of the changes, which repeat then; of a file: its"
    )

    _places: list[str] = PrivateAttr(default_factory=list)  # of a file's changes, for messages

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

    @model_validator(mode="wrap")
    @classmethod
    def _read_file(
        cls, given: Any, check: ModelWrapValidatorHandler[TraceParameters], info: ValidationInfo
    ) -> TraceParameters:
        """Of a file, its content counts and not its place; without a duration it plays once."""
        if not isinstance(given, dict):
            return check(given)
        found, places = dict(given), []
        if isinstance(found.get("file"), str):
            for key in ("changes", "length_s"):
                if found.get(key) is not None:
                    raise ValueError(f"{key}: excludes file")
            window_s = found.get("window_s", cls.model_fields["window_s"].default)
            if not isinstance(window_s, int | float) or not window_s > 0:
                return check(given)  # the key's own rule says what is wrong
            try:
                trace = trace_file.read(found["file"], folders(info), window_s=window_s)
            except ValueError as error:
                raise ValueError(f"file: {error}") from None
            found |= {"file": None, "changes": trace.changes, "length_s": trace.length_s}
            places = trace.places
        length_s, start_s = found.get("length_s"), found.get("start_s", 0)
        is_known = isinstance(length_s, int | float) and isinstance(start_s, int | float)
        if found.get("at_s") is not None and found.get("duration_s") is None and is_known:
            found["duration_s"] = max(length_s - start_s, trace_file.SHORTEST_S)
            if places and found["duration_s"] > LONGEST_S:
                raise ValueError(
                    f"file: {places[-1]}: it lasts {length_s:g} s; valid: up to {LONGEST_S:g} s, "
                    "or with a duration_s"
                )
        made = check(found)
        made._places = places
        return made

    @model_validator(mode="after")
    def _changes_fit(self) -> TraceParameters:
        if self.changes is None or self.length_s is None:
            raise ValueError("needs file, or changes with length_s")
        columns = list(self.changes)
        if unknown := [each for each in columns if each not in trace_file.LARGEST]:
            valid = ", ".join(trace_file.LARGEST)
            raise ValueError(f"changes: unknown column {unknown[0]!r}; valid: {valid}")
        if "t_s" not in columns or len(columns) < 2:
            raise ValueError("changes: needs t_s and at least one other column")
        lengths = {len(each) for each in self.changes.values()}
        if len(lengths) > 1 or not 0 < max(lengths) <= trace_file.MOST_CHANGES:
            most = trace_file.MOST_CHANGES
            raise ValueError(f"changes: columns must be of one length, 1 to {most}")
        if told := trace_file.wrong(self.changes):
            raise ValueError(f"changes: {told}")
        least_s = self.changes["t_s"][-1] + trace_file.SHORTEST_S
        if self.length_s < least_s * 0.999999:
            raise ValueError(f"length_s: {self.length_s:g}; valid: {least_s:g} or more")
        if self.start_s >= self.length_s:
            raise ValueError(f"start_s: {self.start_s:g}; valid: below {self.length_s:g}")
        return self

    def check_link(self, link: Mapping[str, Any]) -> None:
        def where(row: int, column: str) -> str:
            return f"file: {self._places[row]}" if self._places else f"changes: {column}.{row}"

        rates = (self.changes or {}).get("rate_bps", [0.0])
        fastest = max(rates)
        if fastest > link["rate_bps"]:
            raise ValueError(
                f"{where(rates.index(fastest), 'rate_bps')}: {fastest:.0f} bit/s; valid: up to "
                f"{link['rate_bps']}, the link's rate_bps, at which it is calibrated"
            )
        for row, (delay_s, jitter_s) in enumerate(self._waits_s(link)):
            if jitter_s > delay_s:
                raise ValueError(
                    f"{where(row, 'delay_s')}: delay_s: {delay_s:g}; valid: {jitter_s:g} or more, "
                    "the link's jitter_s"
                )

    def after(self, played_s: float) -> Iterator[tuple[float, dict[str, float]]]:
        """When the link gets which values, from `played_s` after its begin on and without end."""
        assert self.changes is not None and self.length_s is not None
        times = self.changes["t_s"]
        rows = [
            {key: each[row] for key, each in self.changes.items() if key != "t_s"}
            for row in range(len(times))
        ]
        lap = 0
        while True:
            for at_s, row in zip(times, rows, strict=True):
                due_s = lap * self.length_s + at_s - self.start_s
                if due_s >= played_s:
                    yield due_s, row
            lap += 1

    def at_begin(self) -> dict[str, float]:
        """The values in force where it begins; none before its first change."""
        assert self.changes is not None
        before = [row for row, at_s in enumerate(self.changes["t_s"]) if at_s <= self.start_s]
        if not before:
            return {}
        return {key: each[before[-1]] for key, each in self.changes.items() if key != "t_s"}


class Trace(Impairment[TraceParameters]):
    """Makes each change when it is due."""

    changes_rates = "recorded"
    ticks: ClassVar[bool] = True

    def __init__(self, parameters: TraceParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        at = direction(lab.network, parameters)
        self._ends = (at.sender.node, at.receiver.node)
        self._link = TemporarySettings(lab.links, *self._ends)
        self._log = JsonLinesWriter(lab.records / LOG)
        self._late_s: list[float] = []
        self._began_s = 0.0

    def begin(self) -> None:
        self._late_s = []
        self._before = self.lab.links.offered(*self._ends)
        now_s = self.lab.now_s()
        self._link.set(self.parameters.at_begin())
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
        self._link.undo()
        self._changed(now_s, is_planned=False)
        sent, dropped = self.lab.links.offered(*self._ends)
        self._met = sent + dropped - sum(self._before)
        self._dropped = dropped - self._before[1]

    def effect(self) -> Effect:
        """The packets that came to the queue meanwhile, and how late the latest change was."""
        details = {"changes": len(self._late_s), "late_max_s": max(self._late_s, default=0.0)}
        return Effect(met=self._met, dropped=self._dropped, details=details)

    def _changed(self, planned_s: float, *, is_planned: bool = True) -> None:
        """Note what the link has now."""
        made_s = self.lab.now_s()
        if is_planned:
            self._late_s.append(made_s - planned_s)
        self._log.write(
            {
                "name": self.parameters.label,
                "link": "->".join(self._ends),
                "planned_s": planned_s,
                "made_s": made_s,
                **self.lab.links.now(*self._ends),
            }
        )
