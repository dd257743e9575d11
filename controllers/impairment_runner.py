"""Runs impairments in the lab: what they may use of it, and when each begins and ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from controllers.framework import eventlet, hub
from controllers.impairments import Effect, Impairment
from controllers.impairments.base import STILL_IN_FORCE, ArrivalFilter, LabAccess
from controllers.switches import Switch
from controllers.timeline import Occurrence, Timeline, write_record
from testbed.lab import paths
from testbed.lab.kernel.packet_filter import PacketFilter
from testbed.lab.kernel.xdp_filter import XdpFilter
from testbed.lab.link_control import LinkControl
from testbed.lab.loss_table import LossTable
from testbed.shared.jsonl import JsonLinesWriter

_TICK_S = 0.001
T = TypeVar("T")


class ControllerLabAccess(LabAccess):
    def __init__(
        self,
        network: Mapping[str, Any],
        switches: Mapping[str, Switch],
        records: Path,
        shared: Path,
    ) -> None:
        super().__init__(network, LinkControl(network), records=records, shared=shared)
        self.switches = switches

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        hub.sleep(duration_s)

    def readable(self, descriptor: int, timeout_s: float | None) -> bool:
        try:
            eventlet.hubs.trampoline(
                descriptor, read=True, timeout=timeout_s, timeout_exc=TimeoutError
            )
        except TimeoutError:
            return False
        return True

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        hub.spawn(function, *arguments)

    def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return cast(T, eventlet.tpool.execute(function, *arguments))

    def arrival_filter(self, sender: str, receiver: str, table: LossTable) -> ArrivalFilter:
        port = next(
            other
            for _, own, other in paths.directions(self.network)
            if (own["node"], other["node"]) == (sender, receiver)
        )
        if port["pid"] is None:
            return XdpFilter(port["interface"], table)
        return PacketFilter(port["pid"], port["interface"], table)

    def barrier(self, switch: str) -> None:
        self.switches[switch].confirm()

    def set_port(self, switch: str, port: int, *, up: bool) -> None:
        self.switches[switch].set_port(port, up=up)


class _Ongoing:
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
        self._perform(self._timeline.start(at_s), at_s)

    def leg_begins(self, round_number: int, leg: str, at_s: float) -> list[str]:
        """Begin what is anchored to this leg; return all names in force."""
        self.start(at_s)
        self._perform(self._timeline.announced(round_number, leg, at_s), at_s)
        return self.active

    def leg_ends(self, round_number: int, leg: str, at_s: float) -> list[str]:
        """End what ends with this leg; return the names of all that were in force."""
        self._finish(self._timeline.ending_with(round_number, leg), at_s)
        return self._timeline.hit(round_number, leg)

    def finish(self, at_s: float) -> None:
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
        ending = [self._ongoing[occurrence] for occurrence in occurrences]
        for ongoing in ending:
            ongoing.stop_planned_s = at_s
            ongoing.stop.set()
        for ongoing in ending:
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
            effect = impairment.effect()
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
        # A late begin does not shorten it; otherwise a burst would be weaker than configured.
        ends_s = begun_s + occurrence.parameters.longest_s
        while (now_s := time.monotonic()) < ends_s:
            wait_s: float | None = ends_s - now_s
            if impairment.ticks:
                wait_s = impairment.tick(now_s - begun_s)
            left_s = max(0.0, ends_s - time.monotonic())
            if wait_s is None:
                hub.sleep(min(_TICK_S, left_s))
                stopped = ongoing.stop.is_set()
            else:
                stopped = ongoing.stop.wait(max(0.0, min(wait_s, left_s)))
            if stopped:
                return ongoing.stop_planned_s or time.monotonic()
        return ends_s
