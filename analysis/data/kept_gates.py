"""Refuses kept gates that contradict themselves or the verdict of their attempt.

A run is ok only if every gate that decides has passed, and a gate passes only if its value does not
exceed its limit. So a gate that says otherwise, or that is not there, was lost or changed later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from analysis.data import records
from analysis.data.evidence import Run
from analysis.data.gates import FAILED, NOT_MEASURED, outcome, stops

PASSED = "passed"
# These apply only where a run happened to meet something: packets that wait, or a loss.
_BY_CHANCE = {"rate_under_load", "packet_bytes", "loss_error", "impairments_unmet"}
_AS_KEPT = "the gates as they were kept"


def check(path: Path, runs: Sequence[Run], others: Sequence[Run]) -> None:
    """Refuse gates that cannot have been kept like this."""
    for run in (*runs, *others):
        for gate in run.gates:
            if wrong := _wrong(gate, run):
                raise ValueError(f"{path}: {gate['name']} of an attempt at {run.key}: {wrong}")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.verdict == "ok":
            # The same machine and version try the same gates at the same point of a sweep.
            kind = json.dumps([run.factors, run.manifest], sort_keys=True)
            groups.setdefault(kind, []).append(run)
    for alike in groups.values():
        for said in _lacking(alike):
            raise ValueError(f"{path}: {said}; valid: {_AS_KEPT}")


def _wrong(gate: dict[str, Any], run: Run) -> str:
    """What is wrong with a gate, and what would be valid; empty if nothing is."""
    found, value, limit = outcome(gate), gate["value"], gate["limit"]
    known = records.section(run.config, "limits")
    if known and gate["name"] not in known:
        return "no such gate; valid: a key of the run's limits"
    if found not in (PASSED, FAILED, NOT_MEASURED):
        return f"outcome {found!r}; valid: {PASSED}, {FAILED}, {NOT_MEASURED}"
    if gate["decides"] is False and not gate["waived"]:
        return "decides is false, and nothing waives it; valid: true"
    if run.verdict == "ok" and stops(gate):
        return f"{found}, and the run is ok; valid: {PASSED}, or waived by limits.waive"
    if found == NOT_MEASURED:
        return ""
    if value is None or limit is None:
        return f"{found} without a value or limit; valid: both"
    # Both are kept to six digits, so a value just beyond its limit may be equal to it.
    if (value > limit) if found == PASSED else (value < limit):
        return f"{found} with the value {value:g} and the limit {limit:g}; valid: not both"
    return ""


def _lacking(alike: Sequence[Run]) -> Iterator[str]:
    """The gates that some of these runs have and others lack, in words."""
    tried = [{_family(gate["name"]): gate["name"] for gate in run.gates} for run in alike]
    wanted = {family: name for each in tried for family, name in each.items()}
    for run, each in zip(alike, tried, strict=True):
        # Nothing judges a simulated run but whether its impairments met something.
        if not each and not run.config.get("simulated"):
            yield f"run {run.key} is ok without any gate"
        for family, name in wanted.items():
            if family not in each and name not in _BY_CHANCE:
                yield f"run {run.key} has no gate {name}, which runs of its kind have"


def _family(gate: str) -> str:
    """The gate without its unit: a share and a time can be limits of the same thing."""
    return gate.removesuffix("_s")
