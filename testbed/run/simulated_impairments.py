"""Impairments in virtual time: the controller's timeline, with another clock than the machine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from controllers import impairment_log, impairments
from controllers.impairments import Effect
from controllers.impairments.base import STILL_IN_FORCE, LabAccess
from controllers.impairments.link_directions import End, direction
from controllers.impairments.loss import Filter, Loss, LossParameters
from controllers.impairments.sender_drop import SenderDrop
from controllers.timeline import Occurrence, Timeline
from testbed.lab.loss_table import LossTable
from testbed.lab.network import HostInfo, hosts_from_json
from testbed.shared.jsonl import JsonLinesWriter
from testbed.simulate.arrivals import Arrivals
from testbed.simulate.engine import Simulation


class SimulatedFilter:
    """Loses the packets of a table as they arrive at a host."""

    def __init__(self, arrivals: Arrivals, table: LossTable) -> None:
        self._arrivals = arrivals
        self._table = table
        self._lost: NDArray[np.bool_] = np.zeros(0, np.bool_)  # of the occurrence's first packets
        self._occurrence = self._met = self._dropped = 0

    def lose(self, *, data_ports: tuple[int, int] | None, occurrence: int) -> None:
        """From now on, the packets of this occurrence; nothing but data arrives here."""
        self._occurrence, self._met, self._dropped = occurrence, 0, 0
        self._lost = np.zeros(0, np.bool_)
        self._arrivals.lose(self._keeps)

    def _keeps(self, count: int) -> NDArray[np.bool_]:
        self._met += count
        if self._met > len(self._lost):
            self._lost = np.zeros(2 * self._met, np.bool_)
            self._lost[self._table.losses(self._occurrence, 2 * self._met)] = True
        mine = self._lost[self._met - count : self._met]
        self._dropped += int(np.count_nonzero(mine))
        return ~mine

    def clear(self) -> None:
        """No longer."""
        self._arrivals.lose_no_longer(self._keeps)

    def take(self) -> tuple[int, int]:
        """What it has met and dropped."""
        return self._met, self._dropped


class SimulatedLoss(Loss):
    """The lab's, which loses what arrives in virtual time."""

    def _filter_at(self, end: End) -> Filter:
        return SimulatedFilter(cast(SimulatedAccess, self.lab).arrivals[end.node], self._table)


KINDS = {"loss": SimulatedLoss, "sender-drop": SenderDrop}


def lacking(entry: Mapping[str, Any], network: Mapping[str, Any]) -> str:
    """Why a resolved entry cannot be simulated, in words; empty if it can."""
    if entry["kind"] not in KINDS:
        return f"kind {entry['kind']!r} is not simulated; valid: {', '.join(KINDS)}"
    parameters = impairments.read(dict(entry))
    if isinstance(parameters, LossParameters) and direction(network, parameters).receiver.is_switch:
        return f"{parameters.target}: loss is simulated where a host receives"
    return ""


@dataclass(frozen=True, kw_only=True)
class SimulatedAccess:
    """What the simulated kinds use of `LabAccess`."""

    network: Mapping[str, Any]
    records: Path
    shared: Path
    arrivals: Mapping[str, Arrivals]

    @property
    def hosts(self) -> Mapping[str, HostInfo]:
        return hosts_from_json(dict(self.network))

    def sleep(self, duration_s: float) -> None:
        """All that was sent before has been counted."""


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
        occurrence.impairment.begin()
        self._write(occurrence, "begin", occurrence.begins_s, Effect())
        self._simulation.at(now_s + parameters.longest_s, lambda: self._end(occurrence))

    def _end(self, occurrence: Occurrence) -> None:
        if occurrence not in self._in_force:
            return  # it has ended with its leg
        self._in_force.remove(occurrence)
        occurrence.impairment.end()
        self._timeline.ended(occurrence)
        self._write(occurrence, "end", self._simulation.now_s, occurrence.impairment.effect())

    def end(self, round_number: int, leg: str) -> list[str]:
        """A leg ends; returns the names of all that were in force during it."""
        for each in self._timeline.ending_with(round_number, leg):
            self._end(each)
        return self._timeline.hit(round_number, leg)

    def finish(self) -> None:
        """Ends all impairments."""
        for each in self._timeline.finish():
            self._end(each)

    def close(self) -> None:
        """Closes the log."""
        if self._log is not None:
            self._log.close()

    def _write(self, occurrence: Occurrence, action: str, planned_s: float, effect: Effect) -> None:
        assert self._log is not None  # there is an entry
        now_s = self._simulation.now_s
        impairment_log.write(self._log, occurrence, action, (planned_s, now_s, now_s), effect)
