"""Impairments in virtual time: the controller's timeline, with another clock than the machine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from controllers import impairments
from controllers.impairments import Effect
from controllers.impairments.base import STILL_IN_FORCE, LabAccess
from controllers.timeline import Occurrence, Timeline, write_record
from testbed.run.simulated_access import SimulatedAccess
from testbed.run.simulated_kinds import KINDS
from testbed.shared.jsonl import JsonLinesWriter
from testbed.simulate.engine import Simulation

_TICK_S = 0.001


class SimulatedController:
    """What the server tells of its rounds, as `ControllerClient`; acts at once."""

    def __init__(
        self,
        simulation: Simulation,
        entries: Sequence[Mapping[str, Any]],
        access: SimulatedAccess,
        log: Path,
    ) -> None:
        """`entries` are resolved, as in `config.json`; `log` is appended to."""
        read = [impairments.read(dict(each)) for each in entries]
        lab = cast(LabAccess, access)
        made = [KINDS[each.kind](each, lab) for each in read]
        self._timeline = Timeline(made)
        self._in_force: set[Occurrence] = set()
        self._settling: dict[Occurrence, float] = {}  # when each has ended
        self._simulation = simulation
        self._log = JsonLinesWriter(log) if entries else None

    def begin(self, round_number: int, leg: str) -> list[str]:
        """A leg begins; returns the names of the impairments now in force."""
        now_s = self._simulation.now_s
        self._plan(self._timeline.start(now_s))
        self._plan(self._timeline.announced(round_number, leg, now_s))
        return self._timeline.active

    def _plan(self, occurrences: Sequence[Occurrence]) -> None:
        for each in occurrences:
            if each.begins_s <= self._simulation.now_s:
                self._begin(each)
            else:
                self._simulation.at(each.begins_s, lambda each=each: self._begin(each))  # type: ignore[misc]

    def _begin(self, occurrence: Occurrence) -> None:
        now_s, parameters = self._simulation.now_s, occurrence.parameters
        if not self._timeline.begin(occurrence):
            why = {} if occurrence.cancelled else {STILL_IN_FORCE: True}
            self._write(occurrence, "skipped", occurrence.begins_s, Effect(details=why))
            return
        self._in_force.add(occurrence)
        self._settled_all(occurrence.impairment)
        occurrence.impairment.begin()
        self._write(occurrence, "begin", occurrence.begins_s, Effect())
        if occurrence.impairment.ticks:
            self._tick(occurrence, now_s)
        self._simulation.at(now_s + parameters.longest_s, lambda: self._end(occurrence))

    def _tick(self, occurrence: Occurrence, begun_s: float) -> None:
        if occurrence not in self._in_force:
            return
        now_s = self._simulation.now_s
        wait_s = occurrence.impairment.tick(now_s - begun_s)
        again_s = now_s + (_TICK_S if wait_s is None else wait_s)
        if again_s < begun_s + occurrence.parameters.longest_s:
            self._simulation.at(again_s, lambda: self._tick(occurrence, begun_s))

    def _end(self, occurrence: Occurrence) -> None:
        if occurrence not in self._in_force:
            return  # it has ended with its leg
        self._in_force.remove(occurrence)
        occurrence.impairment.end()
        self._timeline.ended(occurrence)
        now_s = self._simulation.now_s
        self._settling[occurrence] = now_s
        if settles_s := getattr(occurrence.impairment, "settles_s", 0.0):
            self._simulation.at(now_s + settles_s, lambda: self._settled(occurrence))
        else:
            self._settled(occurrence)

    def _settled(self, occurrence: Occurrence) -> None:
        """Nothing that it did goes on: its effect is known."""
        ended_s = self._settling.pop(occurrence, None)
        if ended_s is not None:
            self._write(occurrence, "end", ended_s, occurrence.impairment.effect(), at_s=ended_s)

    def _settled_all(self, impairment: object = None) -> None:
        """Of one impairment, or of all."""
        for each in list(self._settling):
            if impairment in (None, each.impairment):
                self._settled(each)

    def end(self, round_number: int, leg: str) -> list[str]:
        """A leg ends; returns the names of all that were in force during it."""
        for each in self._timeline.ending_with(round_number, leg):
            self._end(each)
        return self._timeline.hit(round_number, leg)

    def finish(self) -> None:
        """Ends all impairments."""
        for each in self._timeline.finish():
            self._end(each)
        self._settled_all()

    def close(self) -> None:
        """Closes the log."""
        if self._log is not None:
            self._log.close()

    def _write(
        self,
        occurrence: Occurrence,
        action: str,
        planned_s: float,
        effect: Effect,
        *,
        at_s: float | None = None,
    ) -> None:
        assert self._log is not None  # there is an entry
        now_s = self._simulation.now_s if at_s is None else at_s
        write_record(self._log, occurrence, action, (planned_s, now_s, now_s), effect)
