"""One gate of a run's verdict: a measured value of the emulator, and the limit it may not exceed.

A value that could not be measured does not pass. A gate that an experiment waives is measured and
reported as ever, but does not decide.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["passed", "failed", "not measured", "not applicable"]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One finding. Make one with `compared`, `not_measured` or `not_applicable`.

    Attributes:
        name: in words, with the unit.
        key: the key of `limits` that sets the limit, by which the gate can be waived.
        value: the worst that was measured; None: nothing was, or nothing had to be.
        limit: the largest value that passes.
        outcome: a run counts only if all gates passed, were not applicable, or are waived.
        where: the link, path, process or impairment that it is about.
        note: why there is no value, or what the value leaves out.
        waived: why the gate does not decide; empty: it does.
    """

    name: str
    key: str
    value: float | None
    limit: float
    outcome: Outcome
    where: str = ""
    note: str = ""
    waived: str = ""

    @property
    def stops(self) -> bool:
        """Whether the run must not count because of it."""
        return self.outcome in ("failed", "not measured") and not self.waived

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
    name: str, key: str, value: float, limit: float, *, where: str = "", note: str = ""
) -> Gate:
    """A gate that was measured. A value that is no number (NaN) fails."""
    return Gate(
        name=name,
        key=key,
        value=value,
        limit=limit,
        outcome="passed" if value <= limit else "failed",
        where=where,
        note=note,
    )


def not_measured(name: str, key: str, limit: float, why: str, *, where: str = "") -> Gate:
    """A gate that should have been measured and was not: the run does not count."""
    return Gate(
        name=name, key=key, value=None, limit=limit, outcome="not measured", where=where, note=why
    )


def not_applicable(name: str, key: str, limit: float, why: str) -> Gate:
    """A gate about something that this run does not have."""
    return Gate(name=name, key=key, value=None, limit=limit, outcome="not applicable", note=why)
