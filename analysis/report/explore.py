"""What the report's section "Run by run" holds: every ok run's values, drawn and as a table."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import quote

import polars as pl

from analysis.data.evidence import FACTOR_PREFIX, Run, factor_text
from analysis.data.load import Results
from analysis.data.metrics import describe
from analysis.data.per_run import metric_names, per_run
from analysis.figures.style import arm_styles
from analysis.summary.lookup import factors_text
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting

NAME = "per-run"  # of the table's files
# In this order; the page begins with the first that have values, and the others can be switched on.
_QUANTITIES = (
    *("round_latency_s.p50", "round_latency_s.p99", "round_latency_s.burst_mean"),
    *("time_to_target_s", "accuracy", "perplexity", "realised_loss.gather", "training_time_s"),
    *("round_latency_s.p95", "round_latency_s.max", "round_latency_s.mean"),
    *("realised_loss.broadcast", "bytes_sent", "passes_per_transfer"),
)
_SHOWN_AT_FIRST = 6
_MOST_QUANTITIES = len(_QUANTITIES)  # programs may have any number; the table's files have all
_DIGITS = 5  # of a value in the page: more than a screen can tell apart


def values(results: Results) -> pl.DataFrame:
    """A row per ok run in the experiment's order: who it is, its metrics, and its slowest round.

    The columns `slowest_round` and `slowest_round_s` are null where no round has a latency.
    """
    latency = pl.col("latency_s")
    slowest = (
        results.rounds.filter(latency.is_not_null())
        .group_by("run_key")
        .agg(
            # The first of them, where several are the slowest.
            pl.col("round")
            .sort_by("latency_s", "round", descending=[True, False])
            .first()
            .alias("slowest_round"),
            latency.max().alias("slowest_round_s"),
        )
    )
    runs = sorted(
        results.ok_runs,
        key=lambda run: (results.point_order(run), results.arms.index(run.arm), run.seed),
    )
    order = pl.DataFrame({"run_key": [run.key for run in runs]}, schema={"run_key": pl.String})
    frame = order.join(per_run(results), on="run_key", how="left", maintain_order="left")
    return frame.join(slowest, on="run_key", how="left", maintain_order="left")


def quantities(frame: pl.DataFrame) -> list[str]:
    """The metrics that the section shows: those of the list above with values, then programs'."""
    names = [name for name in metric_names(frame) if frame[name].count()]
    known = [name for name in _QUANTITIES if name in names]
    of_programs = [name for name in names if name.startswith(("programs.", "flows.", "hosts."))]
    return [*known, *of_programs][:_MOST_QUANTITIES]


def page_data(
    results: Results, frame: pl.DataFrame, in_timeline: Collection[str]
) -> dict[str, Any] | None:
    """What `explore.js` draws, see there; None without a run that has values.

    `in_timeline`: the keys of the runs that the page of timelines has.
    """
    names = quantities(frame)
    if not names:
        return None
    styles = arm_styles(results.arms)
    by_key = {run.key: run for run in results.ok_runs}
    points = list(dict.fromkeys(_point(by_key[key]) for key in frame["run_key"]))
    described = [describe(name) for name in names]
    units = [
        formatting.unit_for(each.unit, frame[name])
        for each, name in zip(described, names, strict=True)
    ]
    runs = []
    for values_of in frame.iter_rows(named=True):
        run = by_key[values_of["run_key"]]
        numbers = (
            _short(values_of[name], unit.factor) for name, unit in zip(names, units, strict=True)
        )
        runs.append(
            [
                run.key,
                results.arms.index(run.arm),
                points.index(_point(run)),
                run.seed,
                values_of["slowest_round"],
                _short(values_of["slowest_round_s"], 1.0),
                int(run.key in in_timeline),
                *numbers,
            ]
        )
    return {
        "arms": [
            {"name": arm, "colour": styles[arm].colour.name, "marker": styles[arm].marker}
            for arm in results.arms
        ],
        "points": points,
        "quantities": [
            {
                "label": each.label,
                "unit": unit.symbol,
                "meaning": each.meaning,
                "shown": place < _SHOWN_AT_FIRST,
            }
            for place, (each, unit) in enumerate(zip(described, units, strict=True))
        ],
        "runs": runs,
    }


def table(results: Results, frame: pl.DataFrame, in_timeline: Collection[str]) -> Table:
    """The same as a table, which needs no program; its file has all metrics, unrounded."""
    names = quantities(frame)
    units = [formatting.metric_unit(name, frame[name]) for name in names]
    by_key = {run.key: run for run in results.ok_runs}
    factors = results.factor_columns
    point = ["Point"] if factors else []
    rows = []
    for values_of in frame.iter_rows(named=True):
        run = by_key[values_of["run_key"]]
        number, latency_s = values_of["slowest_round"], values_of["slowest_round_s"]
        slowest = Cell(text=formatting.DASH)
        if number is not None:
            slowest = Cell(
                text=str(number),
                detail=f"{formatting.number(latency_s)} s",
                href=timeline_link(run.key, number) if run.key in in_timeline else "",
            )
        rows.append(
            row(
                Cell(text=run.key, href=f"#run={quote(run.key)}"),
                run.arm,
                *([_point(run)] if point else []),
                str(run.seed),
                slowest,
                *(
                    formatting.number(values_of[name], unit)
                    for name, (_, unit) in zip(names, units, strict=True)
                ),
            )
        )
    kept = [
        *("run_key", "arm", *factors, "seed", "slowest_round", "slowest_round_s"),
        *metric_names(frame),
    ]
    renamed = {name: name.removeprefix(FACTOR_PREFIX) for name in factors}
    return Table(
        title=f"{results.experiment}: the values of each ok run",
        columns=["Run", "Arm", *point, "Seed", "Slowest round", *(label for label, _ in units)],
        rows=rows,
        records=frame.select(kept).rename(renamed).to_dicts(),
    )


def timeline_link(key: str, round_number: int) -> str:
    """Where the page of timelines shows a round of a run; `timeline.js` reads it."""
    return f"timeline.html#{quote(key, safe='')}&round={round_number}"


def _point(run: Run) -> str:
    return factors_text({name: factor_text(value) for name, value in run.factors.items()})


def _short(value: float | None, factor: float) -> float | None:
    return None if value is None else float(f"{value * factor:.{_DIGITS}g}")
