"""What the gates in a run's `status.json` say: the outcome of each, and what was waived."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from analysis.data import programs
from analysis.data.evidence import Run

FAILED, NOT_MEASURED = "failed", "not measured"


def outcome(gate: dict[str, Any]) -> str:
    """What became of it."""
    return str(gate.get("outcome"))


def calls_attention(gate: dict[str, Any]) -> bool:
    """Whether it failed or was not measured, also where it does not decide."""
    return outcome(gate) in (FAILED, NOT_MEASURED)


def stops(gate: dict[str, Any]) -> bool:
    """Whether the run does not count because of it."""
    return calls_attention(gate) and gate.get("decides") is not False


def beyond_limits(runs: Iterable[Run]) -> dict[str, str]:
    """The gates that made runs invalid: by key the value furthest beyond its limit, in words."""
    found: dict[str, tuple[float, str]] = {}
    for run in runs:
        for gate in run.gates if run.verdict == "invalid" else ():
            if not stops(gate):
                continue
            key = str(gate.get("key") or gate.get("name"))
            value, limit = gate.get("value"), gate.get("limit")
            words, excess = NOT_MEASURED, 0.0
            if value is not None and limit is not None:
                words, excess = f"{value:.3g} over {limit:g}", value / limit if limit else math.inf
            found[key] = max(found.get(key, (-1.0, "")), (excess, words))
    return {key: words for key, (_, words) in found.items()}


def another_attempt_may_help(run: Run) -> bool:
    """Whether a command can repeat a run that is not ok, with another end than the same gates."""
    stopping = [gate for gate in run.gates if stops(gate)]
    repeats = bool(stopping) and all(gate.get("repeats") is True for gate in stopping)
    return run.verdict != "ok" and not repeats and not programs.is_of_script(run.config)


def waived(runs: Iterable[Run], *, beyond: bool = False) -> dict[str, list[str]]:
    """Each way in which an experiment loosened a gate, with the keys of the runs."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for gate in run.gates:
            if (words := gate.get("waived")) and (calls_attention(gate) or not beyond):
                found.setdefault(str(words), []).append(run.key)
    return found
