"""The timeline: which impairment begins and ends when, in seconds of the monotonic clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from controllers.impairment_plan import Places, contradict
from controllers.impairments import Effect, Impairment, ImpairmentParameters
from testbed.shared.jsonl import JsonLinesWriter


class ContradictionError(RuntimeError):
    """Two entries would act on the same thing at the same time; the message is one line."""


@dataclass(eq=False, kw_only=True)
class Occurrence:
    """One planned or current occurrence of an entry; without a round its leg is "time"."""

    impairment: Impairment[Any]
    round_number: int
    leg: str
    begins_s: float
    cancelled: bool = False

    @property
    def parameters(self) -> ImpairmentParameters:
        return cast(ImpairmentParameters, self.impairment.parameters)

    def ends_with(self, round_number: int, leg: str) -> bool:
        parameters = self.parameters
        is_open = parameters.lasts and parameters.duration_s is None
        return is_open and (self.round_number, self.leg) == (round_number, leg)


class Timeline:
    def __init__(self, impairments: Sequence[Impairment[Any]], places: Places) -> None:
        self._all = list(impairments)
        self._places = places
        self._planned: list[Occurrence] = []
        self._in_force: dict[str, Occurrence] = {}
        # What was in force during each current leg.
        self._hit: dict[tuple[int, str], set[str]] = {}
        self._started = False

    @property
    def active(self) -> list[str]:
        return sorted(self._in_force)

    def start(self, now_s: float) -> list[Occurrence]:
        """Plan the occurrences anchored to time, from the first round's begin; only once."""
        if self._started:
            return []
        self._started = True
        return self._plan(
            (impairment, -1, "time", now_s + instant_s)
            for impairment in self._all
            for instant_s in impairment.parameters.at_s or ()
        )

    def announced(self, round_number: int, leg: str, at_s: float) -> list[Occurrence]:
        """Plan the occurrences anchored to a leg (or round) that begins, in order."""
        self._hit[round_number, leg] = set(self._in_force)
        return self._plan(
            (impairment, round_number, leg, at_s + impairment.parameters.offset_s)
            for impairment in self._all
            if impairment.parameters.hits(round_number, leg)
        )

    def begin(self, occurrence: Occurrence) -> bool:
        """Put it in force; False when its leg is over or the same entry is still in force."""
        if occurrence in self._planned:
            self._planned.remove(occurrence)
        parameters = occurrence.parameters
        if occurrence.cancelled or parameters.label in self._in_force:
            return False
        for other in self._in_force.values():
            if contradict(parameters, other.parameters, self._places):
                raise ContradictionError(
                    f"impairment {parameters.label} ({parameters.kind}) begins while "
                    f"{other.parameters.label} ({other.parameters.kind}) holds "
                    f"{parameters.target}: they cannot overlap there"
                )
        self._in_force[parameters.label] = occurrence
        for names in self._hit.values():
            names.add(parameters.label)
        return True

    def hit(self, round_number: int, leg: str) -> list[str]:
        """List the names of all entries that were in force during a leg (or round) that is over."""
        return sorted(self._hit.pop((round_number, leg), set()))

    def ending_with(self, round_number: int, leg: str) -> list[Occurrence]:
        """List what ends with a leg (or round), and cancel what has not begun."""
        for occurrence in self._planned:
            occurrence.cancelled |= occurrence.ends_with(round_number, leg)
        return [one for one in self._in_force.values() if one.ends_with(round_number, leg)]

    def finish(self) -> list[Occurrence]:
        """List what is in force at the run's end, and cancel what has not begun."""
        for occurrence in self._planned:
            occurrence.cancelled = True
        return list(self._in_force.values())

    def ended(self, occurrence: Occurrence) -> None:
        self._in_force.pop(occurrence.parameters.label, None)

    def _plan(self, facts: Iterable[tuple[Impairment[Any], int, str, float]]) -> list[Occurrence]:
        occurrences = [
            Occurrence(impairment=impairment, round_number=number, leg=leg, begins_s=begins_s)
            for impairment, number, leg, begins_s in facts
        ]
        occurrences.sort(key=lambda occurrence: occurrence.begins_s)
        self._planned += occurrences
        return occurrences


def write_record(
    log: JsonLinesWriter,
    occurrence: Occurrence,
    action: str,
    times_s: tuple[float, float, float],
    effect: Effect,
) -> None:
    """Append a record; `times_s` are when it was planned, sent and acknowledged."""
    planned_s, sent_s, acknowledged_s = times_s
    parameters = occurrence.parameters
    log.write(
        {
            "name": parameters.label,
            "kind": parameters.kind,
            "counts_as": occurrence.impairment.counts_as,
            "changes_rates": occurrence.impairment.changes_rates,
            "host": parameters.host if parameters.link is None else "",
            "target": parameters.target,
            "action": action,
            "round": occurrence.round_number,
            "leg": occurrence.leg,
            "planned_s": planned_s,
            "sent_s": sent_s,
            "acknowledged_s": acknowledged_s,
            **vars(effect),
            "details": dict(effect.details),
        }
    )
