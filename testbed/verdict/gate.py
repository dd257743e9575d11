"""What is found for a gate, and the gate that is made of it."""

from __future__ import annotations

import inspect
import math
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from testbed.verdict.gates import DEFAULTS, GATES, GateEntry

Outcome = Literal["passed", "failed", "not measured", "not applicable"]
STOPPING: tuple[Outcome, ...] = ("failed", "not measured")  # with these a run does not count


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was measured for a gate."""

    value: float | None = None  # the worst; None: nothing was, or nothing had to be
    where: str = ""
    note: str = ""  # what the value leaves out; with neither it nor `missing`, why no gate applies
    missing: str = ""  # what should have been measured and was not
    key: str = ""  # the limit that counts; empty: the gate's only one
    limit: float | None = None  # what passes, if that is more than the limit itself
    repeats: bool = False


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One gate of a run.

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
        return self.outcome in STOPPING and self.decides

    def sentence(self) -> str:
        """What it found, for the reason of a run's status."""
        if self.value is None:
            return f"{self.name} {self.outcome}: {self.note}"
        place = f" ({self.where})" if self.where else ""
        verb = "exceeds" if self.outcome == "failed" else "is within"
        return f"{self.name} {self.value:.4g}{place} {verb} {self.limit:g}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(config: Mapping[str, Any], *, only: str = "", **evidence: object) -> list[Gate]:
    """Compare a run with the limits of its experiment, by all gates or one."""
    # `evidence` has what `Observation.judge` has collected, by the names of the judges' arguments.
    # Keys that are younger than the run's key are written only where they are not the default.
    limits = DEFAULTS | config["limits"]
    evidence |= {"config": config, "limits": limits}
    gates = []
    for entry in GATES:
        if not only or only in entry.limits:
            judge_of = pkgutil.resolve_name(f"{__package__}.{entry.judge}")
            arguments = {name: evidence[name] for name in inspect.signature(judge_of).parameters}
            gates.append(_compared(entry, judge_of(**arguments), limits))
    return gates


def _compared(entry: GateEntry, finding: Finding, limits: Mapping[str, Any]) -> Gate:
    """The gate of what was found."""
    # Beside something missing, a value within the limit does not pass, since what is missing may be
    # worse; one beyond the limit fails all the same.
    key = finding.key or next(iter(entry.limits))
    limit = limits[key] if finding.limit is None else finding.limit
    value, note, missing = finding.value, finding.note, finding.missing
    place = f" ({finding.where})" if finding.where else ""
    outcome: Outcome = "passed"
    if value is not None and not math.isfinite(value):
        missing = "; ".join(filter(None, (f"the value{place} is {value}", missing)))
        value = None
    elif value is not None and value > limit:
        outcome, note, missing = "failed", "; ".join(filter(None, (note, missing))), ""
    elif value is not None and missing:
        missing += f"; the worst of the others was {value:.4g}{place}"
    if missing:
        outcome, value, note = "not measured", None, missing
    elif value is None:
        outcome = "not applicable"
    # A looser limit decides, but is told.
    waived = [each for each in entry.limits if each in limits["waive"]]
    loose = [
        f"{each}, by a limit of {limits[each]:g} instead of {DEFAULTS[each]:g}"
        for each in entry.limits
        if limits[each] > DEFAULTS[each]
    ]
    return Gate(
        name=entry.name,
        key=key,
        value=value,
        limit=limit,
        outcome=outcome,
        where=finding.where,
        note=note,
        waived="; ".join([*(f"{each}, by limits.waive" for each in waived), *loose]),
        decides=not waived,
        repeats=finding.repeats,
    )


def reasons(gates: Sequence[Gate]) -> str:
    """Why the run does not count, for `status.json`; empty if it does."""
    return "; ".join(gate.sentence() for gate in gates if gate.stops)


def worst(values: Iterable[tuple[float, str]]) -> tuple[float, str]:
    """The largest value and where it was. What is not a number is worst: it must not hide."""
    return max(values, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0])
