"""Says which seeds enter no ratio, such as those measured on two machines or with two codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.summary.lookup import points, published_entries
from analysis.words.formatting import seeds_text

_WHY = {
    ("machine",): "measured on different machines",
    ("code",): "measured with different code",
    ("commit",): "measured with different commits",
    ("code", "commit"): "measured with different code",
    ("machine", "commit"): "measured on different machines or with different commits",
}


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """`2 seeds of 5 are no pairs of fixed-low/dblp: measured on different machines.`, and so on."""
    comparisons: dict[str, list[str]] = {}  # by what is said of them
    for compared, apart, where in _apart(summary):
        seeds = len(apart["seeds"])
        count = f"{seeds} seeds of {apart['of']} are no pairs of"
        if seeds == 1:
            count = f"1 seed of {apart['of']} is no pair of"
        names = comparisons.setdefault(f"{count} {{}}{where}: {_why(apart)}.", [])
        if compared not in names:
            names.append(compared)
    return [said.format(", ".join(names)) for said, names in comparisons.items()]


def same(summary: Mapping[str, Any]) -> str:
    """What the two runs of a pair have in common; older runs were told apart by their commits."""
    differ = [apart["differ"] for _, apart, _ in _apart(summary)]
    by_commit = any("commit" in each and "code" not in each for each in differ)
    return f"of one machine and {'commit' if by_commit else 'code'}"


def left_out(part: Mapping[str, Any], pair: str) -> list[tuple[str, str]]:
    """Which seeds enter no ratio of a pair, and why; of a whole summary or of a point of it."""
    found = []
    if seeds := part.get("unpaired", {}).get(pair):
        found.append((seeds_text(seeds), "only one arm of the pair has an ok run"))
    if apart := part.get("no_pairs", {}).get(pair):
        found.append((seeds_text(apart["seeds"]), _why(apart)))
    return found


def _why(apart: Mapping[str, Any]) -> str:
    """Why some seeds are no pairs, from their entry in `no_pairs`."""
    return _WHY.get(tuple(apart["differ"]), "measured on different machines or with different code")


def _apart(summary: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """What is compared, which of its seeds are no pairs, and where."""
    where = " at some point of the sweep" if points(summary) else ""
    for pair, apart in summary.get("no_pairs", {}).items():
        yield pair, apart, where
    for _, _, each in published_entries(summary):
        if "no_pairs" in each:
            yield each["compared"].partition(" ")[2], each["no_pairs"], ""
