"""One table of all kept results: each of the paper's values, and what was measured in its place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from analysis.statistics.intervals import Estimate
from analysis.tables import comparison
from analysis.tables.model import Cell, Table
from analysis.words import formatting

_OURS = "DERIVED"  # the confidence of our own arithmetic, which is not a result of the paper


def overview(summaries: Sequence[dict[str, Any]]) -> Table:
    """A row per published value of these experiments, at all points that have its conditions.

    Args:
        summaries: of experiments with published values, as `summary.json` holds them.
    """
    rows, records = [], []
    for summary in summaries:
        for entries in _published(summary):
            rows.append(_row(summary["experiment"], entries))
            records.append(_record(summary["experiment"], entries))
    return Table(
        title="The paper's values beside ours",
        columns=["The paper's value", "compared", "paper", "ours", "inside our interval"],
        rows=rows,
        records=records,
        numeric=False,
    )


def read(root: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """The kept summaries of these experiments; those that are not kept are left out.

    Raises:
        ValueError: one is damaged.
    """
    found = []
    for name in names:
        path = root / "experiments" / "results" / name / "summary.json"
        if not path.is_file():
            continue
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}; keep these results again") from None
    return found


def _published(summary: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The comparisons of an experiment that have a value of ours, by the paper's value."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for place in (summary, *(summary.get("points") or [])):
        for metric, entries in place["published"].items():
            for each in entries:
                if each["confidence"] != _OURS and each["ours"].get("value") is not None:
                    found.setdefault((each["id"], metric), []).append(each)
    # An entry may be meant in several ways (`also`); the first is what its words say.
    first: dict[str, list[dict[str, Any]]] = {}
    for (name, _), entries in found.items():
        first.setdefault(name, entries)
    return list(first.values())


def _row(experiment: str, entries: Sequence[dict[str, Any]]) -> list[Cell]:
    first = entries[0]
    unit = formatting.RATIO if first["compared"].startswith("ratio") else formatting.POINTS
    ends = dict.fromkeys(formatting.number(end, unit) for end in comparison.bounds(first))
    return [
        Cell(text=f"{first['source']}: {first['title']}", detail=experiment),
        Cell(text=first["compared"].split(" ", 1)[1]),
        Cell(text=f"{formatting.TO.join(ends)} {unit.symbol}"),
        _ours([Estimate(**each["ours"]) for each in entries], unit),
        Cell(text=_inside(entries)),
    ]


def _ours(estimates: Sequence[Estimate], unit: formatting.Unit) -> Cell:
    if len(estimates) == 1:
        (only,) = estimates
        return Cell(
            text=f"{formatting.number(only.value, unit)} {unit.symbol}",
            detail=formatting.brackets(only, unit).strip("()"),
        )
    values = [each.value for each in estimates if each.value is not None]
    seeds = min(each.n for each in estimates)
    low, high = formatting.number(min(values), unit), formatting.number(max(values), unit)
    joined = f"{low} to {high}" if "-" in low + high else f"{low}{formatting.TO}{high}"
    return Cell(
        text=f"{joined} {unit.symbol}", detail=f"{len(values)} points, n = {seeds} seeds each"
    )


def _inside(entries: Sequence[dict[str, Any]]) -> str:
    inside = sum(bool(each["inside_our_interval"]) for each in entries)
    if len(entries) == 1:
        return "yes" if inside else "no"
    return f"{inside} of {len(entries)}"


def _record(experiment: str, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    values = [each["ours"]["value"] for each in entries]
    low, high = comparison.bounds(entries[0])
    return {
        "experiment": experiment,
        "id": entries[0]["id"],
        "paper_low": low,
        "paper_high": high,
        "ours_low": min(values),
        "ours_high": max(values),
        "points": len(values),
    }
