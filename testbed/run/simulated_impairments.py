"""Impairments in virtual time: the controller's timeline, with another clock than the machine's.

Most kinds are the lab's own classes, which act through `LabAccess` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from controllers import impairments
from controllers.impairments import Effect, Impairment, ImpairmentParameters
from controllers.impairments.base import STILL_IN_FORCE, LabAccess, MeterCounts, Metering
from controllers.impairments.flow import BlackoutParameters
from controllers.impairments.host import StragglerParameters
from controllers.impairments.link import BurstParameters, direction
from controllers.impairments.loss import LossParameters
from controllers.impairments.traffic import HostBurstParameters
from controllers.timeline import Occurrence, Timeline, write_record
from testbed.lab import paths
from testbed.lab.delay import DelaySettings
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.link_control import LinkControl
from testbed.lab.loss_table import LossTable
from testbed.lab.paced_frames import clump_frames
from testbed.run.simulated_network import SimulatedNetwork
from testbed.shared.jsonl import JsonLinesWriter
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Batch, Flags, Gate, Link, Meter, Train, depart
from testbed.simulate.peer import Arrivals

_TICK_S = 0.001
ParametersT = TypeVar("ParametersT", bound=ImpairmentParameters)
_OF_THE_LAB = (
    *("loss", "sender-drop", "blackout", "police", "queue"),
    *("delay", "trace", "link-down", "straggler"),
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
        link.loss = delay.loss
        link.jitter_s = 2 * delay.jitter_s
        link.delay_s = delay.delay_s - delay.jitter_s


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
        self._metered: dict[int, Gate] = {}
        self._meters: dict[int, Meter] = {}

    def now_s(self) -> float:
        return self.clock.now_s

    def sleep(self, duration_s: float) -> None:
        """All that was sent before has been counted."""

    def barrier(self, switch: str) -> None:
        """Nothing is outstanding."""

    def set_port(self, switch: str, port: int, *, up: bool) -> None:
        """Before anything is sent, prepares for that."""
        other = self._neighbour(switch, port)
        if not self.clock.events:
            self.simulated.prepare_cut(switch, other)
        else:
            self.simulated.set_link(switch, other, up=up)

    def _neighbour(self, switch: str, port: int) -> str:
        """The node at the other end of a switch's port."""
        return next(
            str(other["node"])
            for _, own, other in paths.directions(self.network)
            if (own["node"], own["number"]) == (switch, port)
        )

    def arrival_filter(self, sender: str, receiver: str, table: LossTable) -> SimulatedFilter:
        if receiver in self.network["switches"]:
            return SimulatedFilter(self.simulated.gate(sender, receiver, behind=True), table)
        return SimulatedFilter(self.simulated.arrivals[receiver], table)

    def prepare_meter(self, switch: str, match: Mapping[str, Any]) -> int:
        number = self.unique()
        if "in_port" in match:
            ends = self._neighbour(switch, match["in_port"]), switch
        else:
            macs = {host.mac: name for name, host in self.hosts.items()}
            ends = switch, macs[match["eth_dst"]]
        self._metered[number] = self.simulated.gate(*ends, behind="in_port" in match)
        return number

    def meter_flow(self, metering: Metering) -> None:
        """Only data comes there, so nothing of it is spared."""
        bucket = {"rate_bps": metering.rate_bps, "burst_bytes": metering.burst_bytes}
        meter = self._meters[metering.number] = Meter(self.clock, drop=metering.drop, **bucket)
        self._metered[metering.number].add_meter(meter)

    def end_metering(self, switch: str, number: int) -> None:
        self._metered[number].remove_meter(self._meters[number])

    def meter_counts(self, switch: str, number: int) -> MeterCounts:
        meter = self._meters[number]
        return MeterCounts(packets=meter.sent, size_bytes=meter.sent_bytes, dropped=meter.dropped)

    def remove_meter(self, switch: str, number: int) -> None:
        del self._meters[number]


class _Traffic(Impairment[ParametersT]):
    """Sends frames over links, past all gates, and counts them as they come out."""

    changes_rates = "no"

    def __init__(self, parameters: ParametersT, lab: SimulatedAccess) -> None:
        super().__init__(parameters, lab)
        self.settles_s = 0.0  # after so long from its end all has arrived that is going to
        self._simulated = lab.simulated
        self._links: Sequence[Link] = ()
        self._sent = self._arrived = 0

    def _send(self, links: Sequence[Link], frame_bytes: int, times_s: NDArray[np.float64]) -> None:
        self._links, self._sent, self._arrived = links, len(times_s), 0

        def deliver(train: Train) -> None:
            self._arrived += len(train.times_s)

        depart(Batch(size_bytes=frame_bytes, links=links, deliver=deliver), times_s)

    def end(self) -> None:
        """All has been sent."""

    def effect(self) -> Effect:
        for link in self._links:
            link.catch_up()
        return Effect(met=self._sent, dropped=self._sent - self._arrived, frames_sent=self._sent)


class SimulatedBurst(_Traffic[BurstParameters]):
    """Sends frames into a switch's queue as evenly as the lab does: in clumps of a few."""

    counts_as = "burst"

    def begin(self) -> None:
        given, at = self.parameters, direction(self.lab.network, self.parameters)
        rate_bps = at.rate_bps * given.rate_factor
        clump = clump_frames(
            rate_bps=rate_bps, link_rate_bps=at.rate_bps, frame_bytes=given.frame_bytes
        )
        frames_per_s = rate_bps / (8 * given.frame_bytes)
        clumps = np.arange(max(1, int(given.duration_s * frames_per_s) // clump))
        begins_s = self.lab.now_s() + clumps * (clump / frames_per_s)
        link = self._simulated.links[at.sender.node, at.receiver.node]
        self._send([link], given.frame_bytes, np.repeat(begins_s, clump))


class SimulatedHostBurst(_Traffic[HostBurstParameters]):
    """Sends datagrams from one host to another, no faster than the sender's own link."""

    def begin(self) -> None:
        given, network = self.parameters, self.lab.network
        ends = (given.from_, given.host)
        narrowest_bps = paths.path_rate_bps(network, *ends)
        rate_bps = given.rate_bps or narrowest_bps * (given.rate_factor or 0)
        gap_s = 8 * given.frame_bytes / min(rate_bps, self.lab.hosts[given.from_].rate_bps)
        named = {each["name"]: each for each in network["links"]}
        self.settles_s = sum(
            8 * named[hop.name]["queue_bytes"] / named[hop.name]["rate_bps"]
            + named[hop.name]["delay_s"]
            + named[hop.name]["jitter_s"]
            for hop in paths.path(network, *ends)
        )
        count = max(1, int(given.duration_s / gap_s))
        sent_s = self.lab.now_s() + np.arange(count, dtype=np.float64) * gap_s
        self._send(self._simulated.path(*ends), given.frame_bytes, sent_s)


KINDS: dict[str, Any] = {
    **{kind: impairments.kind_of(kind) for kind in _OF_THE_LAB},
    "burst": SimulatedBurst,
    "host-burst": SimulatedHostBurst,
}


def lacking(entry: Mapping[str, Any], *, carrier: str) -> str:
    """Why a resolved entry cannot be simulated for such an arm, in words; empty if it can."""
    kind = entry["kind"]
    if kind not in KINDS:
        return f"kind {kind!r} is not simulated; valid: {', '.join(KINDS)}"
    parameters: ImpairmentParameters = impairments.read(dict(entry))
    if parameters.of_our_transport and carrier == "tcp":
        return f"kind {kind!r}: the kernel sends the packets of TCP; valid: arms of udp"
    if isinstance(parameters, LossParameters | BlackoutParameters) and not parameters.spare_control:
        return "spare_control: control messages are never lost when simulated; valid: true"
    if isinstance(parameters, StragglerParameters) and parameters.resource == "cpu":
        return "resource: 'cpu' is not simulated; valid: link"
    return ""


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
        read = [impairments.read(dict(entry)) for entry in entries]
        self._timeline = Timeline([KINDS[each.kind](each, access) for each in read])
        self._in_force: set[Occurrence] = set()
        self._settling: dict[Occurrence, float] = {}  # when each has ended
        self._simulation = simulation
        self._log = JsonLinesWriter(log) if entries else None

    def begin(self, round_number: int, leg: str) -> list[str]:
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
        for each in self._timeline.ending_with(round_number, leg):
            self._end(each)
        return self._timeline.hit(round_number, leg)

    def finish(self) -> None:
        for each in self._timeline.finish():
            self._end(each)
        self._settled_all()

    def close(self) -> None:
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
