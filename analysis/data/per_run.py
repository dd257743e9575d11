"""Every metric of every ok run: one row per run, one column per metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from analysis.data import detector_replay, logs, program_metrics, programs, replay_metrics
from analysis.data.blocks import with_blocks
from analysis.data.evidence import Evidence, factor_names
from analysis.data.kept_rows import TOLERANCE_VARIED, WORKERS_BACK, KeptRows
from analysis.data.load import Results
from analysis.data.measure import WHOLE
from analysis.data.metrics import IMPAIRED, METRICS

__all__ = ["TOLERANCE_VARIED", "WORKERS_BACK", "logged", "metric_names", "per_run"]


def per_run(evidence: Evidence) -> pl.DataFrame:
    """One row per ok run: `run_key`, `arm`, `seed`, the factors, and a column per metric.

    A metric is null where the run has no value for it. Two columns more say whether its tolerance
    changed from round to round (`TOLERANCE_VARIED`), and whether it lost workers that all came back
    (`WORKERS_BACK`), and two where it was measured (`BLOCK`). Of kept results these are the rows
    that were kept.
    """
    frame = logged(evidence)
    if isinstance(evidence, Results):
        frame = _with(frame, detector_replay.measured(evidence), replay_metrics.NAMES.index)
        if evidence.runs_programs:
            of_programs = {
                run.key: programs.measured(run.directory)
                for run in evidence.ok_runs
                if run.directory
            }
            frame = _with(frame, of_programs, program_metrics.order)
    return with_blocks(frame, evidence.ok_runs)


def logged(evidence: Evidence) -> pl.DataFrame:
    """The columns of `per_run` that follow from the run's own logs of the training."""
    if isinstance(evidence, KeptRows):
        return evidence.rows
    assert isinstance(evidence, Results)
    factors = factor_names(evidence.ok_runs)
    rows = logs.label_rows(evidence.ok_runs, factors)
    frame = pl.DataFrame(rows, schema=logs.label_schema(factors), orient="row")
    measured = evidence.measured.tables["metrics"].drop(WHOLE)
    frame = frame.join(measured, on="run_key", how="left", maintain_order="left")
    # Of kinds that no run has any more: what was measured earlier may have them.
    kinds = [name for name in frame.columns if name.startswith(IMPAIRED)]
    return frame.drop(name for name in kinds if not frame[name].count())


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
