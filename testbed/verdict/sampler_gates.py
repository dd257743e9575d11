"""The gate of the sampler. Gates that read its samples cannot see what it missed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.shared import run_directory
from testbed.verdict.gate import Gate, compared, not_measured, worst

_FILE = "samples/sampler.json"
_VIEW = "live"  # for who watches: no gate reads it
# A longer time without a sample hides too much, however long the run is. In runs that counted, on a
# machine that others used, it was up to 0.89 s.
_LONGEST_GAP_S = 2.0


def gates(directory: Path, limits: Mapping[str, Any]) -> list[Gate]:
    """The share of samples that were not taken or not answered, or of one kind that failed.

    A share of a long run hides a long pause, in which nobody looked: such a pause is named.
    """
    name, key = "share of the samples that are missing", "samples_missing"
    found = run_directory.read_or_empty(directory / _FILE)
    if not found:
        why = f"{_FILE} is missing: the sampler died; logs/sampler.log may say why"
        return [not_measured(name, key, limits[key], why)]
    taken, lost = found["ticks"], found["samples_lost"]
    unanswered = found["answers_left_out"] + found["answers_too_late"]
    shares = [
        (lost / max(1, taken + lost), "the sampler was late"),
        (unanswered / max(1, taken), "the kernel's answers were late or lacked a queue"),
    ]
    for part, facts in found["parts"].items():
        if part != _VIEW and facts["errors"]:
            shares.append((facts["errors"] / max(1, taken), f"{part}: {facts['last_error']}"))
    value, where = worst(shares)
    problems = list(found["problems"])
    if (gap_s := found["largest_gap_s"]) > _LONGEST_GAP_S:
        problems.append(f"no sample for {gap_s:.1f} s")
    return [
        compared(
            name,
            key,
            value,
            limits[key],
            where=where if value else "",
            note=f"the longest time without a sample was {gap_s:.3f} s",
            missing="; ".join(problems),
        )
    ]
