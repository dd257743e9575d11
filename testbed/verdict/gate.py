"""One gate of a run's verdict: a measured value of the emulator, and the limit it may not exceed.

A value that could not be measured, or of which a part is missing, does not pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["passed", "failed", "not measured", "not applicable"]
STOPPING: tuple[Outcome, ...] = ("failed", "not measured")  # with these a run does not count


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One finding. Make one with `compared`, `not_measured` or `not_applicable`.

    Attributes:
        name: in words, with the unit.
        key: the key of `limits` that sets the limit, by which the gate can be waived.
        value: the worst that was measured; None: nothing was, or nothing had to be.
        limit: the largest value that passes.
        outcome: `passed`, `failed`, `not measured` or `not applicable`. A run counts only if no
            gate that decides failed or was not measured.
        where: the link, path, process or impairment that it is about.
        note: why there is no value, or what the value leaves out.
        waived: how the experiment loosened the gate; empty: it did not.
        decides: whether the run counts only if this gate allows it; false where `limits.waive`
            names it.
        repeats: whether another attempt would find the same, since the gate judges what the
            experiment says and not the machine.
    """

    name: str
    key: str
    value: float | None
    limit: float
    outcome: Outcome
    where: str = ""
    note: str = ""
    waived: str = ""
    decides: bool = True
    repeats: bool = False

    @property
    def stops(self) -> bool:
        """Whether the run must not count because of it."""
        return self.outcome in STOPPING and self.decides

    def sentence(self) -> str:
        """What it found, for the reason of a run's status."""
        if self.value is None:
            return f"{self.name} {self.outcome}: {self.note}"
        place = f" ({self.where})" if self.where else ""
        verb = "exceeds" if self.outcome == "failed" else "is within"
        return f"{self.name} {self.value:.4g}{place} {verb} {self.limit:g}"

    def as_json(self) -> dict[str, Any]:
        """The record in `status.json`."""
        return asdict(self)


def compared(
    name: str,
    key: str,
    value: float,
    limit: float,
    *,
    where: str = "",
    note: str = "",
    missing: str = "",
) -> Gate:
    """A gate that was measured."""
    # Beside something `missing`, a value within the limit does not pass, since what is missing may
    # be worse; one beyond the limit fails all the same.
    if not math.isfinite(value):
        missing = "; ".join(filter(None, (f"the value{_at(where)} is {value}", missing)))
    elif value > limit or not missing:
        return Gate(
            name=name,
            key=key,
            value=value,
            limit=limit,
            outcome="failed" if value > limit else "passed",
            where=where,
            note="; ".join(filter(None, (note, missing))),
        )
    else:
        missing += f"; the worst of the others was {value:.4g}{_at(where)}"
    return not_measured(name, key, limit, missing, where=where)


def not_measured(name: str, key: str, limit: float, why: str, *, where: str = "") -> Gate:
    """A gate that should have been measured and was not: the run does not count."""
    return Gate(
        name=name, key=key, value=None, limit=limit, outcome="not measured", where=where, note=why
    )


def not_applicable(name: str, key: str, limit: float, why: str) -> Gate:
    """A gate about something that this run does not have."""
    return Gate(name=name, key=key, value=None, limit=limit, outcome="not applicable", note=why)


def worst(found: Iterable[tuple[float, str]]) -> tuple[float, str]:
    """The largest value and where it was. What is not a number is worst: it must not hide."""
    return max(found, key=lambda each: math.inf if math.isnan(each[0]) else each[0])


def _at(where: str) -> str:
    return f" ({where})" if where else ""
