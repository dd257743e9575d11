"""The table of critical rounds: how often each arm had its low tolerance, and how evenly."""

from __future__ import annotations

from typing import Any

from analysis.summary import phases
from analysis.summary.lookup import entry
from analysis.tables import cells
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting
from analysis.words.formatting import PERCENT

_NOTE = (
    "In critical rounds these arms tolerate little loss, in all others much. For other arms the "
    "phase changes nothing."
)


def critical_rounds_table(summary: dict[str, Any]) -> Table:
    """One row per arm whose tolerance depends on the phase; the records hold every run's share."""
    runs = [
        {"arm": arm, "point": each.point, "seed": int(seed), "critical_share": share}
        for arm in summary["arms"]
        for each in phases.compared(summary)
        for seed, share in each.shares.get(arm, {}).items()
    ]
    rows = []
    for arm in summary["arms"]:
        found = sorted((run for run in runs if run["arm"] == arm), key=_share)
        if found:
            mean = cells.measured(entry(summary, "arms", arm, "critical_share"), PERCENT)
            rows.append(row(arm, mean, *(_extreme(found, place) for place in (0, -1))))
    return Table(
        title=f"{summary['experiment']}: critical rounds, where the tolerance depends on the phase",
        columns=["Arm", "Share of critical rounds (%)", "Lowest of a run", "Highest of a run"],
        rows=rows,
        notes=[_NOTE] if rows else [],
        records=runs,
    )


def _share(run: dict[str, Any]) -> float:
    return float(run["critical_share"])


def _extreme(runs: list[dict[str, Any]], place: int) -> Cell:
    """The lowest or the highest of runs in rising order, and which run it is of."""
    found = runs[place]
    where = formatting.joined(found["point"], f"seed {found['seed']}")
    if _share(runs[0]) == _share(runs[-1]):
        where = "all runs" if len(runs) > 1 else where
    return Cell(text=formatting.number(_share(found), PERCENT), detail=where)
