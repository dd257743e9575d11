"""Computes every metric of every ok run: one row per run, one column per metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from analysis.data import detector_replay, learning, program_metrics, programs, replay_metrics
from analysis.data.blocks import with_blocks
from analysis.data.evidence import FACTOR_PREFIX, Evidence, factor_text, impairment_kinds
from analysis.data.kept_rows import TOLERANCE_VARIED, WORKERS_BACK, KeptRows
from analysis.data.load import Results
from analysis.data.metrics import IMPAIRED, LEGS, METRICS, describe

__all__ = ["TOLERANCE_VARIED", "WORKERS_BACK", "logs", "metric_names", "per_run"]


def per_run(evidence: Evidence) -> pl.DataFrame:
    """One row per ok run: `run_key`, `arm`, `seed`, the factors, and a column per metric.

    A metric is null where the run has no value for it. Two columns more say whether its tolerance
    changed from round to round (`TOLERANCE_VARIED`), and whether it lost workers that all came back
    (`WORKERS_BACK`), and two where it was measured (`BLOCK`). Of kept results these are the rows
    that were kept.
    """
    if isinstance(evidence, KeptRows):
        return with_blocks(evidence.rows, evidence.ok_runs)
    assert isinstance(evidence, Results)
    return with_blocks(_from_logs(evidence), evidence.ok_runs)


def _from_logs(results: Results) -> pl.DataFrame:
    labels = ["run_key", "arm", "seed", *results.factor_columns]
    frame = pl.DataFrame(
        [
            {
                "run_key": run.key,
                "arm": run.arm,
                "seed": run.seed,
                **{
                    column: factor_text(run.factors.get(column.removeprefix(FACTOR_PREFIX)))
                    for column in results.factor_columns
                },
                "_planned": run.config.get("rounds"),
            }
            for run in results.ok_runs
        ],
        schema=dict.fromkeys(labels, pl.String) | {"seed": pl.Int64, "_planned": pl.Int64},
        strict=False,
    )
    impaired = _impaired_rounds(results)
    by_kind = [describe(IMPAIRED + kind) for kind in sorted(impaired["kind"].unique())]
    found = logs(results) | {"impaired_rounds": impaired}
    for log, rows in found.items():
        values = [each.value.alias(each.name) for each in (*METRICS, *by_kind) if each.log == log]
        if log == "rounds":
            values += [pl.len().cast(pl.Int64).alias("_logged"), *_FACTS]
        measured = rows.group_by("run_key").agg(values)
        frame = frame.join(measured, on="run_key", how="left", maintain_order="left")
    whole = (pl.col("_logged") == pl.col("_planned")) | pl.col("_planned").is_null()
    frame = frame.with_columns(
        pl.when(whole).then(pl.col(each.name)).alias(each.name)
        for each in METRICS
        if each.whole_log
    ).drop("_logged", "_planned")
    frame = _with(frame, detector_replay.measured(results), replay_metrics.NAMES.index)
    if not results.runs_programs:
        return frame
    of_programs = {
        run.key: programs.measured(run.directory) for run in results.ok_runs if run.directory
    }
    return _with(frame, of_programs, program_metrics.order)


def _varied(leg: str) -> pl.Expr:
    return pl.col(f"tolerance_{leg}").drop_nulls().n_unique() > 1


_LOST = pl.col("workers_lost").list.len()
_FACTS = (
    pl.any_horizontal(map(_varied, LEGS)).alias(TOLERANCE_VARIED),
    ((_LOST.max() > 0) & (_LOST.sort_by("round").last() == 0)).alias(WORKERS_BACK),
)


def _with(
    frame: pl.DataFrame,
    measured: Mapping[str, Mapping[str, float | None]],
    order: Callable[[str], Any],
) -> pl.DataFrame:
    """The same with metrics that only some experiments have: values by run and name."""
    names = sorted({name for each in measured.values() for name in each}, key=order)
    return frame.with_columns(
        pl.Series(
            name, [measured.get(key, {}).get(name) for key in frame["run_key"]], dtype=pl.Float64
        )
        for name in names
    )


def metric_names(frame: pl.DataFrame) -> list[str]:
    """The metrics among the columns of `per_run`'s frame, in the registry's order.

    Of programs those that a run has: most are about training.
    """
    kinds = sorted(name for name in frame.columns if name.startswith(IMPAIRED))
    replayed = [name for name in replay_metrics.NAMES if name in frame.columns]
    of_programs = [name for name in frame.columns if program_metrics.fields(name)]
    return [
        *(
            metric.name
            for metric in METRICS
            if metric.name in frame.columns and (not of_programs or frame[metric.name].count())
        ),
        *of_programs,
        *kinds,
        *replayed,
    ]


def logs(results: Results) -> dict[str, pl.DataFrame]:
    """The rows that metrics are computed from, by the name that a metric's `log` gives."""
    transfers, role = results.transfers, pl.col("role")
    return {
        "rounds": results.rounds,
        "receivers": transfers.filter(
            (role == "receiver") & pl.col("chunks_received").is_not_null()
        ),
        "senders": transfers.filter(role == "sender"),
        "evaluations": learning.evaluations(results.training).join(
            learning.targets(results.ok_runs), on="run_key", how="left", maintain_order="left"
        ),
        "effects": learning.deviations(results.effects).sort("run_key", "round"),
        "paced_iterations": learning.paced_iterations(results),
        "impairment_ends": results.impairments.filter(pl.col("action") == "end"),
    }


def _impaired_rounds(results: Results) -> pl.DataFrame:
    """A row per round that was hit; `kind` names all kinds that hit it, as in `loss + straggler`.

    A round that two kinds hit says nothing of either alone.
    """
    kinds = pl.DataFrame(
        [
            {"run_key": run.key, "impairments": label, "kind": kind}
            for run in results.ok_runs
            for label, kind in impairment_kinds(run.config.get("impairments")).items()
        ],
        schema={"run_key": pl.String, "impairments": pl.String, "kind": pl.String},
    )
    return (
        results.rounds.select("run_key", "round", "latency_s", "impairments")
        .explode("impairments")
        .join(kinds, on=["run_key", "impairments"], how="inner", maintain_order="left")
        .group_by("run_key", "round", maintain_order=True)
        .agg(pl.col("latency_s").first(), pl.col("kind").unique().sort().str.join(" + "))
    )
