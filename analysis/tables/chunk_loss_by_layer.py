"""The table of the realised loss of single layers."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting


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
