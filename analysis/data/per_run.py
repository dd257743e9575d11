"""Every metric of every ok run: one row per run, one column per metric."""

from __future__ import annotations

import polars as pl

from analysis.data import logs, program_metrics, programs
from analysis.data.blocks import with_blocks
from analysis.data.evidence import Evidence, factor_names
from analysis.data.kept_rows import TOLERANCE_VARIED, KeptRows
from analysis.data.load import Results
from analysis.data.metrics import IMPAIRED, METRICS

__all__ = ["TOLERANCE_VARIED", "logged", "metric_names", "per_run"]


def per_run(evidence: Evidence) -> pl.DataFrame:
    """One row per ok run: `run_key`, `arm`, `seed`, the factors, and a column per metric."""
    frame = logged(evidence)
    if isinstance(evidence, Results) and evidence.runs_programs:
        frame = _with_programs(frame, evidence)
    return with_blocks(frame, evidence.ok_runs)


def logged(evidence: Evidence) -> pl.DataFrame:
    """The columns of `per_run` that follow from the run's own logs of the training."""
    if isinstance(evidence, KeptRows):
        return evidence.rows
    assert isinstance(evidence, Results)
    factors = factor_names(evidence.ok_runs)
    rows = logs.label_rows(evidence.ok_runs, factors)
    frame = pl.DataFrame(rows, schema=logs.label_schema(factors), orient="row")
    measured = evidence.measured.tables["metrics"]
    frame = frame.join(measured, on="run_key", how="left", maintain_order="left")
    # Of kinds that no run has any more: what was measured earlier may have them.
    kinds = [name for name in frame.columns if name.startswith(IMPAIRED)]
    return frame.drop(name for name in kinds if not frame[name].count())


def _with_programs(frame: pl.DataFrame, results: Results) -> pl.DataFrame:
    """The same with what the runs' programs measured."""
    measured = {
        run.key: programs.measured(run.directory) for run in results.ok_runs if run.directory
    }
    names = sorted(
        {name for metrics in measured.values() for name in metrics}, key=program_metrics.order
    )
    return frame.with_columns(
        pl.Series(
            name, [measured.get(key, {}).get(name) for key in frame["run_key"]], dtype=pl.Float64
        )
        for name in names
    )


def metric_names(frame: pl.DataFrame) -> list[str]:
    """The metrics among the columns of `per_run`'s frame, in the registry's order."""
    kinds = sorted(name for name in frame.columns if name.startswith(IMPAIRED))
    of_programs = [name for name in frame.columns if program_metrics.fields(name)]
    return [
        *(
            metric.name
            for metric in METRICS
            if metric.name in frame.columns and (not of_programs or frame[metric.name].count())
        ),
        *of_programs,
        *kinds,
    ]
