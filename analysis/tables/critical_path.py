"""The tables of the critical path: what the rounds' time went into, and who was waited for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import polars as pl

from analysis import formatting
from analysis.data.critical_path import PARTS, STEPS
from analysis.data.evidence import FACTOR_PREFIX
from analysis.data.load import Results
from analysis.data.metrics import LEGS
from analysis.formatting import PERCENT
from analysis.summary import lookup
from analysis.summary.lookup import entry, factors_text
from analysis.tables import rendering
from analysis.tables.rendering import Cell, Table, row

_LABELS = ("run_key", "arm", "seed")
HEADINGS = {
    "compute_s": "Compute",
    "overrun_s": "Beyond its pace",
    "gather_transfer_s": "Gather: transfer",
    "gather_repair_s": "Gather: repair",
    "gather_delay_s": "Gather: delay",
    "mean_s": "Mean at the server",
    "broadcast_transfer_s": "Broadcast: transfer",
    "broadcast_repair_s": "Broadcast: repair",
    "broadcast_delay_s": "Broadcast: delay",
    "update_s": "Update",
    "barrier_s": "Barrier",
}
_NOTES = [
    "Mean over the rounds of the ok runs; in brackets the share of the rounds' time. A round's "
    "steps wait for the slowest, so the parts add up to the round.",
    *(f"{heading}: {PARTS[part]}." for part, heading in HEADINGS.items()),
    "A leg's delay is what it took beyond the median of the run's calm rounds with the same "
    "tolerance; so half of the calm rounds have a little of it.",
]


def parts_table(results: Results) -> Table:
    """A row for each arm, at each point of a sweep; the records hold each run's sums."""
    path, rows = results.frame("critical_path"), []
    for label, rounds in _cells(results):
        mean = {name: float(rounds[name].mean()) for name in ("iteration_s", *PARTS)}  # type: ignore[arg-type]
        unit = formatting.unit_for("s", [mean["iteration_s"]])
        cells = [
            Cell(
                text=formatting.number(mean[part], unit),
                detail=_share(mean[part], mean["iteration_s"]),
            )
            for part in HEADINGS
        ]
        whole = f"{formatting.number(mean['iteration_s'], unit)} {unit.symbol}"
        rows.append(row(label, str(rounds.height), whole, *cells))
    labels = [name for name in path.columns if name in _LABELS or name.startswith(FACTOR_PREFIX)]
    sums = path.group_by(labels, maintain_order=True).agg(
        pl.len().alias("rounds"), pl.col("iteration_s", *PARTS).sum()
    )
    return Table(
        title=f"{results.experiment}: what the rounds' time went into, along the critical path",
        columns=["Arm", "Rounds", "Round", *HEADINGS.values()],
        rows=rows,
        notes=_NOTES if rows else [],
        records=sums.to_dicts(),
    )


def culprits_table(results: Results) -> Table:
    """A row for each arm, at each point: who was waited for, and what impairments cost."""
    rows = [
        row(label, *(_most_often(rounds, step) for step in STEPS), _cost(rounds))
        for label, rounds in _cells(results)
    ]
    return Table(
        title=f"{results.experiment}: who was waited for, and what impairments cost",
        columns=["Arm", "Computed longest", "Last in the gather", "Last in the broadcast", "Cost"],
        rows=rows,
        notes=[
            "Workers: who was it in most rounds, and in how many. Cost: repair and delay of the "
            "legs in which the impairment was in force and met the last worker (of a slowed "
            "processor, computing beyond its arm's median), as a share of all rounds' time. Legs "
            "that two met count for both."
        ]
        if rows
        else [],
        records=_records(results),
        numeric=False,
    )


def _cells(results: Results) -> Iterator[tuple[str, pl.DataFrame]]:
    """The rounds of each arm at each point, in the experiment's order, and what to call them."""
    path = results.frame("critical_path")
    points = sorted(
        {results.point_order(run): run.factors for run in results.ok_runs}.items(),
        key=lambda each: each[0],
    )
    of_run = {run.key: results.point_order(run) for run in results.ok_runs}
    for arm in results.arms:
        for order, factors in points:
            keys = [key for key, each in of_run.items() if each == order]
            rounds = path.filter(pl.col("arm") == arm, pl.col("run_key").is_in(keys))
            if not rounds.is_empty():
                yield formatting.joined(arm, factors_text(factors)), rounds


def _share(part: float, whole: float) -> str:
    return f"{formatting.number(part / whole, PERCENT)} %" if whole > 0 else ""


def _most_often(rounds: pl.DataFrame, step: str) -> Cell:
    counts = rounds[f"{step}_worker"].drop_nulls().value_counts(sort=False)
    if counts.is_empty():
        return Cell(text=formatting.DASH)
    name, count = counts.sort("count", f"{step}_worker", descending=[True, False]).row(0)
    return Cell(text=str(name), detail=f"{count} of {rounds.height} rounds")


def _cost(rounds: pl.DataFrame) -> str:
    """What each impairment cost, the dearest first."""
    usual_s = rounds["compute_s"].median()
    beyond = {
        "compute": (pl.col("compute_s") - usual_s).clip(0.0) + pl.col("overrun_s"),
        **{leg: pl.col(f"{leg}_repair_s") + pl.col(f"{leg}_delay_s") for leg in STEPS[1:]},
    }
    costs = pl.concat(
        rounds.select(name=f"{step}_impairments", cost_s=cost).explode("name").drop_nulls("name")
        for step, cost in beyond.items()
    )
    whole = float(rounds["iteration_s"].sum())
    by_cost = costs.group_by("name").agg(pl.col("cost_s").sum()).sort("cost_s", descending=True)
    return ", ".join(f"{name} {_share(cost_s, whole)}" for name, cost_s in by_cost.iter_rows()) or (
        formatting.DASH
    )


def _records(results: Results) -> list[dict[str, object]]:
    """Per run, step, worker and impairments: how many rounds, and the step's seconds in them."""
    path, steps = results.frame("critical_path"), []
    labels = [name for name in path.columns if name in _LABELS or name.startswith(FACTOR_PREFIX)]
    for step in STEPS:
        parts = [name for name in PARTS if name.startswith(step)]
        parts += ["overrun_s"] if step == "compute" else []
        steps.append(
            path.select(
                *labels,
                pl.lit(step).alias("step"),
                pl.col(f"{step}_worker").alias("worker"),
                pl.col(f"{step}_impairments").list.join(" + ").alias("impairments"),
                pl.sum_horizontal(parts).alias("duration_s"),
            )
        )
    return (
        pl.concat(steps)
        .group_by(*labels, "step", "worker", "impairments", maintain_order=True)
        .agg(pl.len().alias("rounds"), pl.col("duration_s").sum())
        .to_dicts()
    )


_NOTE = (
    "In critical rounds these arms tolerate little loss, in all others much. For other arms the "
    "phase changes nothing."
)


def critical_rounds_table(summary: dict[str, Any]) -> Table:
    """One row per arm whose tolerance depends on the phase; the records hold every run's share."""
    runs, rows = lookup.critical_rounds(summary), []
    for arm in summary["arms"]:
        shares = [(each["critical_share"], each) for each in runs if each["arm"] == arm]
        if shares:
            shares.sort(key=lambda each: each[0])
            mean = rendering.measured(entry(summary, "arms", arm, "critical_share"), PERCENT)
            same = "all runs" if shares[1:] and shares[0][0] == shares[-1][0] else ""
            ends = (
                Cell(
                    text=formatting.number(share, PERCENT),
                    detail=same or formatting.joined(each["point"], f"seed {each['seed']}"),
                )
                for share, each in (shares[0], shares[-1])
            )
            rows.append(row(arm, mean, *ends))
    return Table(
        title=f"{summary['experiment']}: critical rounds, where the tolerance depends on the phase",
        columns=["Arm", "Share of critical rounds (%)", "Lowest of a run", "Highest of a run"],
        rows=rows,
        notes=[_NOTE] if rows else [],
        records=runs,
    )


def layer_loss_table(results: Results) -> Table:
    """Per arm and leg the layer that lost least and the one that lost most; all in the records."""
    by_layer = results.frame("layer_loss").group_by("arm", "leg", "layer")
    means, rows = by_layer.agg(pl.col("missing").mean()), []
    for arm, leg in itertools.product(results.arms, LEGS):
        if ordered := means.filter(arm=arm, leg=leg).sort("missing", "layer").rows(named=True):
            ends = (
                Cell(
                    text=formatting.number(each["missing"], formatting.PERCENT),
                    detail=f"layer {each['layer']}",
                )
                for each in (ordered[0], ordered[-1])
            )
            rows.append(row(arm, leg, *ends))
    return Table(
        title=f"{results.experiment}: realised loss of single layers, in the order of the payload",
        columns=["Arm", "Leg", "Least lost (%)", "Most lost (%)"],
        rows=rows,
        notes=["Each number is a mean over transfers and runs; layers.csv has every layer."],
        records=means.sort("arm", "leg", "layer").to_dicts(),
        numeric=False,
    )
