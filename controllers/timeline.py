"""Which impairment begins and ends when: bookkeeping only, driven by the application.

It knows no switch and has no clock of its own, so that its order of events is tested without a
network. Instants are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controllers.impairments import Impairment, ImpairmentParameters


class ContradictionError(RuntimeError):
    """Two entries would hold the same thing at the same time; the message is one line."""


@dataclass(eq=False, kw_only=True)
class Occurrence:
    """One time that an entry is to be in force.

    `round_number` and `leg` are its anchor; -1 and "time" where it is a time. `ends_s` is when
    it ends at the latest; `with_leg` says that it ends earlier if its leg does.
    """

    impairment: Impairment[Any]
    round_number: int
    leg: str
    begins_s: float
    ends_s: float
    with_leg: bool
    cancelled: bool = False

    @property
    def parameters(self) -> ImpairmentParameters:
        """Of the entry."""
        parameters: ImpairmentParameters = self.impairment.parameters
        return parameters


Contradict = Callable[[ImpairmentParameters, ImpairmentParameters], bool]


def _same_target(first: ImpairmentParameters, second: ImpairmentParameters) -> bool:
    return first.exclusive and first.kind == second.kind and first.target == second.target


class Timeline:
    """The entries of a run, and which of them are in force."""

    def __init__(
        self, impairments: Sequence[Impairment[Any]], contradict: Contradict = _same_target
    ) -> None:
        """`contradict` says whether two entries may not be in force at the same time."""
        self._all = list(impairments)
        self._contradict = contradict
        self._planned: list[Occurrence] = []
        self._in_force: dict[str, Occurrence] = {}
        self._hit: dict[tuple[int, str], set[str]] = {}  # legs that go on: what was in force
        self._started = False

    @property
    def active(self) -> list[str]:
        """Names of the entries in force."""
        return sorted(self._in_force)

    def start(self, now_s: float) -> list[Occurrence]:
        """The first round begins: what is anchored to time counts from here. Once only."""
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
        """A leg (or round) begins: what is anchored to it, in the order of its begins."""
        self._hit[round_number, leg] = set(self._in_force)
        return self._plan(
            [
                self._occurrence(each, round_number, leg, at_s + each.parameters.offset_s)
                for each in self._all
                if each.parameters.hits(round_number, leg)
            ]
        )

    def begin(self, occurrence: Occurrence) -> bool:
        """Count it as in force; False when its leg is over or the same entry still goes on.

        Raises:
            ContradictionError: another entry of its kind holds its target.
        """
        if occurrence in self._planned:
            self._planned.remove(occurrence)
        wanted = occurrence.parameters
        if occurrence.cancelled or wanted.label in self._in_force:
            return False
        for other in self._in_force.values():
            if self._contradict(wanted, other.parameters):
                raise ContradictionError(
                    f"impairment {wanted.label} begins while {other.parameters.label} "
                    f"holds {wanted.target}: entries of kind {wanted.kind} cannot overlap there"
                )
        self._in_force[wanted.label] = occurrence
        for names in self._hit.values():
            names.add(wanted.label)
        return True

    def hit(self, round_number: int, leg: str) -> list[str]:
        """A leg (or round) is over: names of all that was in force at any time of it."""
        return sorted(self._hit.pop((round_number, leg), set()))

    def ending_with(self, round_number: int, leg: str) -> list[Occurrence]:
        """A leg (or round) is over: what ends with it. What has not begun is cancelled."""

        def belongs(each: Occurrence) -> bool:
            return each.with_leg and (each.round_number, each.leg) == (round_number, leg)

        for each in filter(belongs, self._planned):
            each.cancelled = True
        return list(filter(belongs, self._in_force.values()))

    def finish(self) -> list[Occurrence]:
        """The run is over: all that is in force. What has not begun is cancelled."""
        for each in self._planned:
            each.cancelled = True
        return list(self._in_force.values())

    def ended(self, occurrence: Occurrence) -> None:
        """It is no longer in force."""
        self._in_force.pop(occurrence.parameters.label, None)

    def _plan(self, found: list[Occurrence]) -> list[Occurrence]:
        found.sort(key=lambda each: each.begins_s)
        self._planned += found
        return found

    @staticmethod
    def _occurrence(
        impairment: Impairment[Any], round_number: int, leg: str, begins_s: float
    ) -> Occurrence:
        wanted = impairment.parameters
        return Occurrence(
            impairment=impairment,
            round_number=round_number,
            leg=leg,
            begins_s=begins_s,
            ends_s=begins_s + wanted.longest_s,
            with_leg=wanted.lasts and wanted.duration_s is None,
        )
