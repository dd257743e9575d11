"""Which seeds enter no ratio, such as those measured on two machines or with two codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.summary.lookup import points, published_entries
from analysis.words.formatting import seeds_text

SAME = "of one machine and code"  # what the two runs of a pair have in common


def lines(summary: Mapping[str, Any]) -> list[str]:
    """`no pairs: 2 of 5 seeds of fixed-low/dblp (measured on different machines)`, and so on."""
    compared: dict[tuple[str, str], list[str]] = {}
    for name, apart, where in _apart(summary):
        seeds = len(apart["seeds"])
        count = f"{seeds} of {apart['of']} seed{'s' * (apart['of'] > 1)}"
        names = compared.setdefault((count, f"{_why(apart)}{where}"), [])
        if name not in names:
            names.append(name)
    return [
        f"no pairs: {count} of {', '.join(names)} ({why})"
        for (count, why), names in compared.items()
    ]


def left_out(part: Mapping[str, Any], pair: str) -> list[tuple[str, str]]:
    """Which seeds enter no ratio of a pair, and why; of a whole summary or of a point of it."""
    found = []
    if seeds := part.get("unpaired", {}).get(pair):
        found.append((seeds_text(seeds), "only one arm of the pair has an ok run"))
    if apart := part.get("no_pairs", {}).get(pair):
        found.append((seeds_text(apart["seeds"]), _why(apart)))
    return found


def _why(apart: Mapping[str, Any]) -> str:
    differ = [
        {"machine": "on different machines"}.get(name, "with different code")
        for name in apart["differ"]
    ]
    return f"measured {' or '.join(dict.fromkeys(differ))}"


def _apart(summary: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """What is compared, which of its seeds are no pairs, and where."""
    where = ", at some point of the sweep" if points(summary) else ""
    for pair, apart in summary.get("no_pairs", {}).items():
        yield pair, apart, where
    for _, _, published in published_entries(summary):
        if "no_pairs" in published:
            yield published["compared"].partition(" ")[2], published["no_pairs"], ""
