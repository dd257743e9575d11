"""Runs the timeline's impairments: begins and ends each on time, and logs both."""

from __future__ import annotations

import time
from typing import Any

from controllers.framework import hub
from controllers.impairments import Effect, Impairment
from controllers.impairments.base import NOT_MEASURED, STILL_IN_FORCE, NotMeasuredError
from controllers.timeline import Occurrence, Timeline, write_record
from testbed.shared.jsonl import JsonLinesWriter

_TICK_S = 0.001


class _Ongoing:
    """The events of an occurrence that is planned or in force."""

    def __init__(self) -> None:
        self.begun = hub.Event()  # in force, or skipped
        self.stop = hub.Event()
        self.logged = hub.Event()
        self.stop_planned_s: float | None = None


class ImpairmentRunner:
    """Runs each occurrence in a green thread of its own, so that none delays another."""

    def __init__(self, timeline: Timeline, log: JsonLinesWriter) -> None:
        self._timeline = timeline
        self._log = log
        self._ongoing: dict[Occurrence, _Ongoing] = {}
        self._measuring: dict[Impairment[Any], _Ongoing] = {}

    @property
    def active(self) -> list[str]:
        return self._timeline.active

    def start(self, at_s: float) -> None:
        """Note that the first round begins at this instant of the monotonic clock."""
        self._perform(self._timeline.start(at_s), at_s)

    def leg_begins(self, round_number: int, leg: str, at_s: float) -> list[str]:
        """Begin what is anchored to this leg; return the names in force once all is in force."""
        self.start(at_s)
        self._perform(self._timeline.announced(round_number, leg, at_s), at_s)
        return self.active

    def leg_ends(self, round_number: int, leg: str, at_s: float) -> list[str]:
        """End what ends with this leg; returns the names of all that were in force."""
        self._finish(self._timeline.ending_with(round_number, leg), at_s)
        return self._timeline.hit(round_number, leg)

    def finish(self, at_s: float) -> None:
        """End everything, because the run is over; return once it is logged."""
        self._finish(self._timeline.finish(), at_s)
        for ongoing in list(self._ongoing.values()):
            ongoing.stop.set()
            ongoing.logged.wait()

    def _perform(self, occurrences: list[Occurrence], now_s: float) -> None:
        begun = []
        for occurrence in occurrences:
            ongoing = self._ongoing[occurrence] = _Ongoing()
            hub.spawn(self._carry_out, occurrence, ongoing)
            if occurrence.begins_s <= now_s:
                begun.append(ongoing.begun)
        for event in begun:
            event.wait()

    def _finish(self, occurrences: list[Occurrence], at_s: float) -> None:
        all_ongoing = [self._ongoing[each] for each in occurrences]
        for ongoing in all_ongoing:
            ongoing.stop_planned_s = at_s
            ongoing.stop.set()
        for ongoing in all_ongoing:
            ongoing.logged.wait()

    def _carry_out(self, occurrence: Occurrence, ongoing: _Ongoing) -> None:
        impairment = occurrence.impairment
        while (wait_s := occurrence.begins_s - time.monotonic()) > 0:
            if ongoing.stop.wait(wait_s):
                break
        if impairment in self._measuring:  # waits for its last effect; the delay counts as lateness
            self._measuring[impairment].logged.wait()
        if self._timeline.begin(occurrence):
            sent_s = time.monotonic()
            impairment.begin()
            begun_s = time.monotonic()
            times_s = occurrence.begins_s, sent_s, begun_s
            write_record(self._log, occurrence, "begin", times_s, Effect())
            ongoing.begun.set()
            planned_s = self._hold(occurrence, ongoing, begun_s)
            sent_s = time.monotonic()
            impairment.end()
            ended_s = time.monotonic()
            self._timeline.ended(occurrence)
            self._measuring[impairment] = ongoing
            effect = _effect_of(impairment)
            del self._measuring[impairment]
            write_record(self._log, occurrence, "end", (planned_s, sent_s, ended_s), effect)
        else:
            now_s = time.monotonic()
            why = {} if occurrence.cancelled else {STILL_IN_FORCE: True}
            times_s = occurrence.begins_s, now_s, now_s
            write_record(self._log, occurrence, "skipped", times_s, Effect(details=why))
            ongoing.begun.set()
        del self._ongoing[occurrence]
        ongoing.logged.set()

    def _hold(self, occurrence: Occurrence, ongoing: _Ongoing, begun_s: float) -> float:
        """Keep the impairment in force until it is to end; return the planned instant."""
        impairment = occurrence.impairment
        if not occurrence.parameters.lasts:
            return begun_s
        # A late begin does not shorten it; otherwise a burst would be weaker than configured.
        ends_s = begun_s + occurrence.parameters.longest_s
        while (now_s := time.monotonic()) < ends_s:
            if impairment.ticks:
                wait_s = impairment.tick(now_s - begun_s)
                left_s = ends_s - time.monotonic()
                if wait_s is None:
                    hub.sleep(max(0.0, min(_TICK_S, left_s)))
                    stopped = ongoing.stop.is_set()
                else:
                    stopped = ongoing.stop.wait(max(0.0, min(wait_s, left_s)))
            else:
                stopped = ongoing.stop.wait(ends_s - now_s)
            if stopped:
                return ongoing.stop_planned_s or time.monotonic()
        return ends_s


def _effect_of(impairment: Impairment[Any]) -> Effect:
    try:
        return impairment.effect()
    except NotMeasuredError as error:
        return Effect(details={NOT_MEASURED: str(error)})
