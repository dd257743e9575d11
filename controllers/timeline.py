"""The timeline: which impairment begins and ends when, in seconds of the monotonic clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from controllers.impairments import Effect, Impairment, ImpairmentParameters
from testbed.shared.jsonl import JsonLinesWriter


class ContradictionError(RuntimeError):
    """Two entries would act on the same thing at the same time; the message is one line."""


@dataclass(eq=False, kw_only=True)
class Occurrence:
    """One planned or current occurrence of an entry; without a round its leg is "time"."""

    # `with_leg`: it also ends when its leg ends.

    impairment: Impairment[Any]
    round_number: int
    leg: str
    begins_s: float
    with_leg: bool
    cancelled: bool = False

    @property
    def parameters(self) -> ImpairmentParameters:
        return cast(ImpairmentParameters, self.impairment.parameters)


Contradict = Callable[[ImpairmentParameters, ImpairmentParameters], bool]


def _same_target(first: ImpairmentParameters, second: ImpairmentParameters) -> bool:
    return first.exclusive and first.kind == second.kind and first.target == second.target


class Timeline:
    """A run's entries, and which of them are in force."""

    def __init__(
        self, impairments: Sequence[Impairment[Any]], contradict: Contradict = _same_target
    ) -> None:
        """`contradict` tells whether two entries must not be in force at the same time."""
        self._all = list(impairments)
        self._contradict = contradict
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
            [
                self._occurrence(each, -1, "time", now_s + instant_s)
                for each in self._all
                for instant_s in each.parameters.at_s or ()
            ]
        )

    def announced(self, round_number: int, leg: str, at_s: float) -> list[Occurrence]:
        """Plan the occurrences anchored to a leg (or round) that begins, in order."""
        self._hit[round_number, leg] = set(self._in_force)
        return self._plan(
            [
                self._occurrence(each, round_number, leg, at_s + each.parameters.offset_s)
                for each in self._all
                if each.parameters.hits(round_number, leg)
            ]
        )

    def begin(self, occurrence: Occurrence) -> bool:
        """Mark it as in force; False when its leg is over or the same entry is still in force."""
        if occurrence in self._planned:
            self._planned.remove(occurrence)
        parameters = occurrence.parameters
        if occurrence.cancelled or parameters.label in self._in_force:
            return False
        for other in self._in_force.values():
            if self._contradict(parameters, other.parameters):
                raise ContradictionError(
                    f"impairment {parameters.label} begins while {other.parameters.label} "
                    f"holds {parameters.target}: "
                    f"entries of kind {parameters.kind} cannot overlap there"
                )
        self._in_force[parameters.label] = occurrence
        for names in self._hit.values():
            names.add(parameters.label)
        return True

    def hit(self, round_number: int, leg: str) -> list[str]:
        """The names of all entries that were in force during a leg (or round) that is over."""
        return sorted(self._hit.pop((round_number, leg), set()))

    def ending_with(self, round_number: int, leg: str) -> list[Occurrence]:
        """The occurrences that end with a leg (or round); cancels those that have not begun."""

        def belongs(each: Occurrence) -> bool:
            return each.with_leg and (each.round_number, each.leg) == (round_number, leg)

        for each in filter(belongs, self._planned):
            each.cancelled = True
        return list(filter(belongs, self._in_force.values()))

    def finish(self) -> list[Occurrence]:
        """All occurrences in force at the run's end; cancels those that have not begun."""
        for each in self._planned:
            each.cancelled = True
        return list(self._in_force.values())

    def ended(self, occurrence: Occurrence) -> None:
        self._in_force.pop(occurrence.parameters.label, None)

    def _plan(self, occurrences: list[Occurrence]) -> list[Occurrence]:
        occurrences.sort(key=lambda each: each.begins_s)
        self._planned += occurrences
        return occurrences

    @staticmethod
    def _occurrence(
        impairment: Impairment[Any], round_number: int, leg: str, begins_s: float
    ) -> Occurrence:
        parameters = impairment.parameters
        return Occurrence(
            impairment=impairment,
            round_number=round_number,
            leg=leg,
            begins_s=begins_s,
            with_leg=parameters.lasts and parameters.duration_s is None,
        )


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
