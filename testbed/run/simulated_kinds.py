"""Kinds of impairments in virtual time.

Those that act through `LabAccess` alone are the lab's own classes. Others differ from them in what
touches packets: filters here are gates of the simulated network, and traffic is trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from controllers import impairments
from controllers.impairments import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.flow import Blackout, BlackoutParameters, Police, PoliceParameters
from controllers.impairments.host import Straggler, StragglerParameters
from controllers.impairments.link import Delay, End, LinkDown, direction
from controllers.impairments.loss import Filter, Loss, LossParameters, SenderDrop
from controllers.impairments.queue import BurstParameters, Queue
from controllers.impairments.trace import Trace
from controllers.impairments.traffic import HostBurstParameters
from testbed.lab import paths
from testbed.lab.loss_table import LossTable
from testbed.lab.paced_frames import clump_frames
from testbed.run.simulated_access import SimulatedAccess
from testbed.simulate.arrivals import Arrivals
from testbed.simulate.gate import Gate, Meter
from testbed.simulate.link import Link
from testbed.simulate.train import Batch, Train, depart

Flags = NDArray[np.bool_]


def _access(impairment: Impairment[Any]) -> SimulatedAccess:
    return cast(SimulatedAccess, impairment.lab)


def _switch_gate(impairment: Impairment[Any]) -> Gate:
    """Where the switch of a direction meets packets: before it sends, or as it receives."""
    at = direction(impairment.lab.network, impairment.parameters)
    network = _access(impairment).simulated
    gate = network.gate_behind if at.receiver.is_switch else network.gate_before
    return gate(at.sender.node, at.receiver.node)


class _Counted:
    """Counts what it meets and drops at a place in the network."""

    def __init__(self, place: Arrivals | Gate) -> None:
        self._place = place
        self._met = self._dropped = 0

    def start(self) -> None:
        """From now on."""
        self._met = self._dropped = 0
        self._place.lose(self._keeps)

    def clear(self) -> None:
        """No longer."""
        self._place.lose_no_longer(self._keeps)

    def _keeps(self, count: int) -> Flags:
        kept = ~self._takes(self._met, count)
        self._met += count
        self._dropped += count - int(np.count_nonzero(kept))
        return kept

    def take(self) -> tuple[int, int]:
        """What it has met and dropped."""
        return self._met, self._dropped

    def _takes(self, first: int, count: int) -> Flags:
        raise NotImplementedError


class SimulatedFilter(_Counted):
    """Loses the packets of a table; nothing but data comes here."""

    def __init__(self, place: Arrivals | Gate, table: LossTable) -> None:
        super().__init__(place)
        self._table = table
        self._lost: Flags = np.zeros(0, np.bool_)  # of the occurrence's first packets
        self._occurrence = 0

    def lose(self, *, data_ports: tuple[int, int] | None, occurrence: int) -> None:
        """From now on, the packets of this occurrence."""
        self._occurrence = occurrence
        self._lost = np.zeros(0, np.bool_)
        self.start()

    def _takes(self, first: int, count: int) -> Flags:
        if first + count > len(self._lost):
            size = 2 * (first + count)
            self._lost = np.zeros(size, np.bool_)
            self._lost[self._table.losses(self._occurrence, size)] = True
        return self._lost[first : first + count]


class SimulatedLoss(Loss):
    """The lab's, which loses what comes in virtual time."""

    def _filter_at(self, end: End) -> Filter:
        access = _access(self)
        if not end.is_switch:
            return SimulatedFilter(access.simulated.arrivals[end.node], self._table)
        sender = direction(access.network, self.parameters).sender.node
        return SimulatedFilter(access.simulated.gate_behind(sender, end.node), self._table)


class _Everything(_Counted):
    def _takes(self, first: int, count: int) -> Flags:
        return np.ones(count, np.bool_)


class SimulatedBlackout(Impairment[BlackoutParameters]):
    """Drops all data of a direction where a switch would: before it sends, or as it receives."""

    counts_as = Blackout.counts_as
    changes_rates = Blackout.changes_rates

    def __init__(self, parameters: BlackoutParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._drops = _Everything(_switch_gate(self))

    def begin(self) -> None:
        self._drops.start()

    def end(self) -> None:
        self._drops.clear()

    def effect(self) -> Effect:
        met, dropped = self._drops.take()
        return Effect(met=met, dropped=dropped)


class SimulatedPolice(Impairment[PoliceParameters]):
    """Meters all data of a direction where a switch would."""

    counts_as = Police.counts_as
    changes_rates = Police.changes_rates

    def __init__(self, parameters: PoliceParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._gate = _switch_gate(self)

    def begin(self) -> None:
        rate_bps, burst_bytes = self.parameters.bucket
        self._meter = Meter(_access(self).clock, rate_bps=rate_bps, burst_bytes=burst_bytes)
        self._gate.meter(self._meter)

    def end(self) -> None:
        self._gate.meter_no_longer(self._meter)

    def effect(self) -> Effect:
        return Effect(met=self._meter.sent, dropped=self._meter.dropped)


class _Traffic:
    """Frames that are sent over links and counted as they come out."""

    # They pass no gates: in the lab, a `loss` takes nothing but what comes to training's ports.

    def __init__(self, links: Sequence[Link], frame_bytes: int) -> None:
        self._links, self._frame_bytes = links, frame_bytes
        self.sent = self.arrived = 0

    def send(self, times_s: NDArray[np.float64]) -> None:
        self.sent, self.arrived = len(times_s), 0

        def deliver(train: Train) -> None:
            self.arrived += len(train.times_s)

        depart(Batch(size_bytes=self._frame_bytes, links=self._links, deliver=deliver), times_s)

    def effect(self) -> Effect:
        for link in self._links:
            link.catch_up()
        return Effect(met=self.sent, dropped=self.sent - self.arrived, frames_sent=self.sent)


class SimulatedBurst(Impairment[BurstParameters]):
    """Sends frames into a switch's queue as evenly as the lab does: in clumps of a few."""

    counts_as = "burst"
    changes_rates = "no"

    def __init__(self, parameters: BurstParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        at = direction(lab.network, parameters)
        link = _access(self).simulated.links[at.sender.node, at.receiver.node]
        self._traffic = _Traffic([link], parameters.frame_bytes)
        rate_bps = at.rate_bps * parameters.rate_factor
        self._clump = clump_frames(
            rate_bps=rate_bps, link_rate_bps=at.rate_bps, frame_bytes=parameters.frame_bytes
        )
        self._frames_per_s = rate_bps / (8 * parameters.frame_bytes)

    def begin(self) -> None:
        due = int(self.parameters.duration_s * self._frames_per_s)
        clumps = np.arange(max(1, due // self._clump))
        begins_s = self.lab.now_s() + clumps * (self._clump / self._frames_per_s)
        self._traffic.send(np.repeat(begins_s, self._clump))

    def end(self) -> None:
        """All has been sent."""

    def effect(self) -> Effect:
        return self._traffic.effect()


class SimulatedHostBurst(Impairment[HostBurstParameters]):
    """Sends datagrams from one host to another, no faster than the sender's own link."""

    changes_rates = "no"

    def __init__(self, parameters: HostBurstParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        ends = (parameters.from_, parameters.host)
        narrowest_bps = paths.path_rate_bps(lab.network, *ends)
        rate_bps = parameters.rate_bps or narrowest_bps * (parameters.rate_factor or 0)
        sent_bps = min(rate_bps, lab.hosts[parameters.from_].rate_bps)
        self._gap_s = 8 * parameters.frame_bytes / sent_bps
        self.settles_s = 0.0  # after so long from its end all has arrived that is going to
        self._traffic = _Traffic([], parameters.frame_bytes)

    def begin(self) -> None:
        wanted, network = self.parameters, _access(self).simulated
        links = network.path(wanted.from_, wanted.host)
        hops = paths.path(self.lab.network, wanted.from_, wanted.host)
        named = {each["name"]: each for each in self.lab.network["links"]}
        self.settles_s = sum(
            8 * named[hop.name]["queue_bytes"] / named[hop.name]["rate_bps"]
            + named[hop.name]["delay_s"]
            + named[hop.name]["jitter_s"]
            for hop in hops
        )
        self._traffic = _Traffic(links, wanted.frame_bytes)
        count = max(1, int(wanted.duration_s / self._gap_s))
        sent_s: NDArray[np.float64] = np.arange(count, dtype=np.float64) * self._gap_s
        self._traffic.send(self.lab.now_s() + sent_s)

    def end(self) -> None:
        """All has been sent."""

    def effect(self) -> Effect:
        return self._traffic.effect()


KINDS: dict[str, Any] = {
    "loss": SimulatedLoss,
    "sender-drop": SenderDrop,
    "burst": SimulatedBurst,
    "blackout": SimulatedBlackout,
    "police": SimulatedPolice,
    "queue": Queue,
    "delay": Delay,
    "trace": Trace,
    "link-down": LinkDown,
    "host-burst": SimulatedHostBurst,
    "straggler": Straggler,
}


def lacking(entry: Mapping[str, Any], *, carrier: str) -> str:
    """Why a resolved entry cannot be simulated for such an arm, in words; empty if it can."""
    kind = entry["kind"]
    if kind not in KINDS:
        return f"kind {kind!r} is not simulated; valid: {', '.join(KINDS)}"
    parameters: ImpairmentParameters = impairments.read(dict(entry))
    if parameters.of_our_transport and carrier == "tcp":
        return f"kind {kind!r}: the kernel sends the packets of TCP; valid: arms of udp"
    filters = LossParameters | BlackoutParameters
    if isinstance(parameters, filters) and not parameters.spare_control:
        return "spare_control: control messages are never lost when simulated; valid: true"
    if isinstance(parameters, StragglerParameters) and parameters.resource == "cpu":
        return "resource: 'cpu' is not simulated; valid: link"
    return ""
