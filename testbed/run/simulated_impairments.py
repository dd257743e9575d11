"""Impairments in virtual time: the lab's own timeline and most of its kinds, by another clock."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from controllers import impairments
from controllers.impairment_plan import places_of
from controllers.impairments import Effect, Impairment, ImpairmentParameters
from controllers.impairments.base import STILL_IN_FORCE, LabAccess
from controllers.impairments.host import StragglerParameters
from controllers.impairments.link import BurstParameters, direction
from controllers.impairments.loss import LossParameters
from controllers.timeline import Occurrence, Timeline, write_record
from testbed.lab.delay import DelaySettings
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.link_control import LinkControl
from testbed.lab.loss_table import LossTable
from testbed.lab.paced_frames import clump_frames
from testbed.run.simulated_network import SimulatedNetwork
from testbed.shared.jsonl import JsonLinesWriter
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Batch, Flags, Gate, Train, depart
from testbed.simulate.peer import Arrivals

_TICK_S = 0.001
_OF_THE_LAB = (
    *("loss", "sender-drop", "queue", "delay"),
    *("trace", "straggler"),
)


class SimulatedLinks(LinkControl):
    """The lab's, whose changes are made in virtual time."""

    def __init__(self, network: SimulatedNetwork) -> None:
        super().__init__(network.info)
        self._network = network

    def offered(self, first: str, second: str) -> tuple[int, int]:
        self._require(first, second)
        link = self._network.links[first, second]
        link.catch_up()
        return link.sent - link.dropped, link.dropped

    def _set_shape(self, way: tuple[str, str], key: str, shape: LinkShape) -> None:
        link = self._network.links[way]
        if key == "rate_bps":
            link.set_rate(shape.rate_bps)
        else:
            link.set_queue(shape.queue_bytes)

    def _set_delay(self, way: tuple[str, str], delay: DelaySettings) -> None:
        link = self._network.links[way]
        link.set_loss(delay.loss)
        link.jitter_s = 2 * delay.jitter_s
        link.set_delay(delay.delay_s - delay.jitter_s)


class SimulatedFilter:
    """Loses the packets of a table at a place in the network; nothing but data comes there."""

    def __init__(self, place: Arrivals | Gate, table: LossTable) -> None:
        self._place = place
        self._table = table
        self._occurrence = self._met = self._dropped = 0
        self._lost: Flags = np.zeros(0, np.bool_)  # of the occurrence's first packets

    def lose(self, *, data_ports: tuple[int, int] | None, occurrence: int) -> None:
        self._occurrence = occurrence
        self._lost = np.zeros(0, np.bool_)
        self._met = self._dropped = 0
        self._place.add_filter(self._keeps)

    def clear(self) -> None:
        self._place.remove_filter(self._keeps)

    def take(self) -> tuple[int, int]:
        return self._met, self._dropped

    def _keeps(self, count: int) -> Flags:
        first, end = self._met, self._met + count
        if end > len(self._lost):
            self._lost = np.zeros(2 * end, np.bool_)
            self._lost[self._table.losses(self._occurrence, 2 * end)] = True
        lost = self._lost[first:end]
        self._met = end
        self._dropped += int(np.count_nonzero(lost))
        return ~lost


class SimulatedAccess(LabAccess):
    """The simulator's: switches act at once."""

    def __init__(
        self, clock: Simulation, simulated: SimulatedNetwork, *, records: Path, shared: Path
    ) -> None:
        links = SimulatedLinks(simulated)
        super().__init__(simulated.info, links, records=records, shared=shared)
        self.clock = clock
        self.simulated = simulated

    def now_s(self) -> float:
        return self.clock.now_s

    def sleep(self, duration_s: float) -> None:
        pass

    def arrival_filter(self, sender: str, receiver: str, table: LossTable) -> SimulatedFilter:
        if receiver in self.network["switches"]:
            return SimulatedFilter(self.simulated.gate(sender, receiver), table)
        return SimulatedFilter(self.simulated.arrivals[receiver], table)


class SimulatedBurst(Impairment[BurstParameters]):
    """Sends frames into a switch's queue as evenly as the lab does: in clumps of a few."""

    counts_as = "burst"
    changes_rates = "no"

    def __init__(self, parameters: BurstParameters, lab: SimulatedAccess) -> None:
        super().__init__(parameters, lab)
        self._at = direction(lab.network, parameters)
        self._link = lab.simulated.links[self._at.sender.node, self._at.receiver.node]
        self._sent = self._arrived = 0

    def begin(self) -> None:
        burst, link_rate_bps = self.parameters, self._at.rate_bps
        rate_bps = link_rate_bps * burst.rate_factor
        clump = clump_frames(
            rate_bps=rate_bps, link_rate_bps=link_rate_bps, frame_bytes=burst.frame_bytes
        )
        frames_per_s = rate_bps / (8 * burst.frame_bytes)
        clumps = np.arange(max(1, int(burst.duration_s * frames_per_s) // clump))
        times_s = np.repeat(self.lab.now_s() + clumps * (clump / frames_per_s), clump)
        self._sent, self._arrived = len(times_s), 0

        def deliver(train: Train) -> None:
            self._arrived += len(train.times_s)

        depart(Batch(size_bytes=burst.frame_bytes, links=[self._link], deliver=deliver), times_s)

    def end(self) -> None:
        self._link.catch_up()

    def effect(self) -> Effect:
        return Effect(met=self._sent, dropped=self._sent - self._arrived, frames_sent=self._sent)


KINDS: dict[str, Any] = {
    **{kind: impairments.kind_of(kind) for kind in _OF_THE_LAB},
    "burst": SimulatedBurst,
}


def lacking(entry: Mapping[str, Any], *, carrier: str) -> str:
    """It says why a resolved entry cannot be simulated for such an arm; it is empty if it can."""
    kind = entry["kind"]
    if kind not in KINDS:
        return f"kind {kind!r} is not simulated; valid: {', '.join(KINDS)}"
    parameters: ImpairmentParameters = impairments.read(dict(entry))
    if parameters.of_our_transport and carrier == "tcp":
        return f"kind {kind!r}: the kernel sends the packets of TCP; valid: arms of udp"
    if isinstance(parameters, LossParameters) and not parameters.spare_control:
        return "spare_control: control messages are never lost when simulated; valid: true"
    if isinstance(parameters, StragglerParameters) and parameters.resource == "cpu":
        return "resource: 'cpu' is not simulated; valid: link"
    return ""


class SimulatedController:
    """Takes what the server announces of its rounds, as `ControllerClient`; acts at once."""

    def __init__(
        self,
        simulation: Simulation,
        entries: Sequence[Mapping[str, Any]],
        access: SimulatedAccess,
        log: Path,
    ) -> None:
        read = [impairments.read(dict(entry)) for entry in entries]
        made = [KINDS[one.kind](one, access) for one in read]
        self._timeline = Timeline(made, places_of(access.network))
        self._in_force: set[Occurrence] = set()
        self._simulation = simulation
        self._log = JsonLinesWriter(log) if entries else None

    def begin(self, round_number: int, leg: str) -> list[str]:
        now_s = self._simulation.now_s
        self._plan(self._timeline.start(now_s))
        self._plan(self._timeline.announced(round_number, leg, now_s))
        return self._timeline.active

    def _plan(self, occurrences: Sequence[Occurrence]) -> None:
        for occurrence in occurrences:
            if occurrence.begins_s <= self._simulation.now_s:
                self._begin(occurrence)
            else:
                begin = functools.partial(self._begin, occurrence)
                self._simulation.at(occurrence.begins_s, begin)

    def _begin(self, occurrence: Occurrence) -> None:
        now_s, parameters = self._simulation.now_s, occurrence.parameters
        if not self._timeline.begin(occurrence):
            why = {} if occurrence.cancelled else {STILL_IN_FORCE: True}
            self._write(occurrence, "skipped", occurrence.begins_s, Effect(details=why))
            return
        self._in_force.add(occurrence)
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
        effect = occurrence.impairment.effect()
        self._write(occurrence, "end", self._simulation.now_s, effect)

    def end(self, round_number: int, leg: str) -> list[str]:
        for occurrence in self._timeline.ending_with(round_number, leg):
            self._end(occurrence)
        return self._timeline.hit(round_number, leg)

    def finish(self) -> None:
        for occurrence in self._timeline.finish():
            self._end(occurrence)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _write(self, occurrence: Occurrence, action: str, planned_s: float, effect: Effect) -> None:
        assert self._log is not None  # there is an entry
        now_s = self._simulation.now_s
        write_record(self._log, occurrence, action, (planned_s, now_s, now_s), effect)
