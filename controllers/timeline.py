"""Which impairment begins and ends when: bookkeeping only, driven by the application.

It knows no switch and no clock, so that its order of events is tested without a network.
"""

from __future__ import annotations

from collections.abc import Sequence

from controllers.impairments import Impairment, ImpairmentParameters


class Timeline:
    """The impairments of a run, by the legs that they hit."""

    def __init__(self, impairments: Sequence[Impairment[ImpairmentParameters]]) -> None:
        self._all = list(impairments)
        self._active: dict[str, Impairment[ImpairmentParameters]] = {}

    @property
    def active(self) -> list[str]:
        """Names of the impairments in force."""
        return sorted(self._active)

    def starting(self, round_number: int, leg: str) -> list[Impairment[ImpairmentParameters]]:
        """Those that this leg starts, now counted as in force; one still in force goes on."""
        found = [
            each
            for each in self._all
            if each.parameters.hits(round_number, leg) and each.parameters.label not in self._active
        ]
        for each in found:
            self._active[each.parameters.label] = each
        return found

    def ending_with_leg(self) -> list[Impairment[ImpairmentParameters]]:
        """Those in force that end because their leg does; the caller ends them one by one."""
        return [each for each in self._active.values() if each.ends_with_leg]

    def ended(self, impairment: Impairment[ImpairmentParameters]) -> bool:
        """Take one off; False when it had ended already (its own time was up first)."""
        return self._active.pop(impairment.parameters.label, None) is not None
