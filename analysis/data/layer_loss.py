"""The realised loss of single layers, averaged as the logs are read: they are long lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

LABELS = {"run_key": pl.String, "arm": pl.String, "leg": pl.String}
SCHEMA: dict[str, Any] = LABELS | {"layer": pl.Int64, "missing": pl.Float64, "transfers": pl.Int64}


def sums(transfers: pl.DataFrame) -> pl.DataFrame:
    """Per run, leg and layer: `missing`, the summed shares, and `transfers`, how many.

    `transfers` has `run_key`, `arm`, `leg` and `tensor_loss`, the share of each layer's elements
    that is missing, in the order of the layers; null where it was not logged.
    """
    known = transfers.filter(pl.col("tensor_loss").list.len() > 0)
    return (
        known.select(
            *LABELS,
            pl.int_ranges(1, pl.col("tensor_loss").list.len() + 1).alias("layer"),
            "tensor_loss",
        )
        .explode("layer", "tensor_loss")
        .group_by(*LABELS, "layer")
        .agg(pl.col("tensor_loss").sum().alias("missing"), pl.len().alias("transfers"))
        .select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    )


def averaged(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Per run, leg and layer the mean share that was missing, from the sums of several logs."""
    return (
        pl.concat([pl.DataFrame(schema=SCHEMA), *parts])
        .group_by(*LABELS, "layer")
        .agg(pl.col("missing").sum() / pl.col("transfers").sum(), pl.col("transfers").sum())
        .select(*SCHEMA)
        .sort("run_key", "leg", "layer")
    )
