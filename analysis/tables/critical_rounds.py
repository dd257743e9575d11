"""The tables of critical rounds, and of the realised loss of single layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

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


def layer_loss_table(experiment: str, layer_loss: pl.DataFrame, arms: Sequence[str]) -> Table:
    """Per arm and leg the layer that lost least and the one that lost most; all in the records."""
    means = layer_loss.group_by("arm", "leg", "layer").agg(pl.col("missing").mean())
    rows = []
    for arm in arms:
        for leg in ("gather", "broadcast"):
            of_leg = means.filter((pl.col("arm") == arm) & (pl.col("leg") == leg))
            if of_leg.is_empty():
                continue
            ordered = of_leg.sort("missing", "layer").rows(named=True)
            ends = (
                Cell(
                    text=formatting.number(each["missing"], formatting.PERCENT),
                    detail=f"layer {each['layer']}",
                )
                for each in (ordered[0], ordered[-1])
            )
            rows.append(row(arm, leg, *ends))
    return Table(
        title=f"{experiment}: realised loss of single layers, in the order of the payload",
        columns=["Arm", "Leg", "Least lost (%)", "Most lost (%)"],
        rows=rows,
        notes=["Each number is a mean over transfers and runs; layers.csv has every layer."],
        records=means.sort("arm", "leg", "layer").to_dicts(),
        numeric=False,
    )
