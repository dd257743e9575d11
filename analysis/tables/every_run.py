"""The table of every ok run: its values, and its slowest round with the way to its timeline."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import quote

import polars as pl

from analysis.data.evidence import FACTOR_PREFIX, factor_text
from analysis.data.load import Results
from analysis.data.per_run import metric_names, per_run
from analysis.summary.lookup import factors_text
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting

_SHOWN = (
    *("round_latency_s.p50", "round_latency_s.p99", "round_latency_s.burst_mean"),
    *("time_to_target_s", "accuracy", "perplexity", "realised_loss.gather", "training_time_s"),
    *("round_latency_s.max", "bytes_sent", "passes_per_transfer"),
)
_MOST_SHOWN = len(_SHOWN)  # programs may have any number; the table's files have all


def every_run_table(results: Results, in_timeline: Collection[str]) -> Table:
    """A row per ok run in the experiment's order; the records hold all metrics, unrounded."""
    frame = _values(results)
    metrics = metric_names(frame)
    with_values = [name for name in metrics if frame[name].count()]
    of_programs = [
        name for name in with_values if name.startswith(("programs.", "flows.", "hosts."))
    ]
    shown = [name for name in (*_SHOWN, *of_programs) if name in with_values][:_MOST_SHOWN]
    units = {name: formatting.metric_unit(name, frame[name]) for name in shown}
    runs = {run.key: run for run in results.ok_runs}
    factors = results.factor_columns
    rows = []
    for values in frame.iter_rows(named=True):
        run = runs[values["run_key"]]
        point = factors_text({name: factor_text(level) for name, level in run.factors.items()})
        number, latency_s = values["slowest_round"], values["slowest_round_s"]
        slowest = Cell(text=formatting.DASH)
        if number is not None:
            slowest = Cell(
                text=str(number),
                detail=f"{formatting.number(latency_s)} s",
                href=_timeline_link(run.key, number) if run.key in in_timeline else "",
            )
        rows.append(
            row(
                run.key,
                run.arm,
                *([point] if factors else []),
                str(run.seed),
                slowest,
                *(formatting.number(values[name], unit) for name, (_, unit) in units.items()),
            )
        )
    slowest_columns = ("slowest_round", "slowest_round_s")
    renamed = {name: name.removeprefix(FACTOR_PREFIX) for name in factors}
    return Table(
        title=f"{results.experiment}: the values of each ok run",
        columns=[
            *("Run", "Arm", *(["Point"] if factors else []), "Seed", "Slowest round"),
            *(label for label, _ in units.values()),
        ],
        rows=rows,
        records=frame.select("run_key", "arm", *factors, "seed", *slowest_columns, *metrics)
        .rename(renamed)
        .to_dicts(),
    )


def _values(results: Results) -> pl.DataFrame:
    """`per_run` in the experiment's order, with the first of each run's slowest rounds."""
    slowest = (
        results.latencies.drop_nulls("latency_s")
        .sort("latency_s", "round", descending=[True, False])
        .group_by("run_key")
        .agg(
            pl.col("round").first().alias("slowest_round"),
            pl.col("latency_s").first().alias("slowest_round_s"),
        )
    )
    runs = sorted(
        results.ok_runs,
        key=lambda run: (results.point_order(run), results.arms.index(run.arm), run.seed),
    )
    order = pl.DataFrame({"run_key": [run.key for run in runs]}, schema={"run_key": pl.String})
    frame = order.join(per_run(results), on="run_key", how="left", maintain_order="left")
    return frame.join(slowest, on="run_key", how="left", maintain_order="left")


def _timeline_link(key: str, round_number: int) -> str:
    """Where the page of timelines shows a round of a run; `timeline.js` reads it."""
    return f"timeline.html#{quote(key, safe='')}&round={round_number}"
