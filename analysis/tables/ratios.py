"""The table of ratios: every arm over the reference arm, paired by seed."""

from __future__ import annotations

from typing import Any

from analysis.data.metrics import IMPAIRED, describe
from analysis.statistics.intervals import ENOUGH_SEEDS
from analysis.summary import lookup
from analysis.tables import cells
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting
from analysis.words.formatting import seeds_text

NOTE = (
    "A ratio is the geometric mean of the ratios at the seeds that both arms have. Beside it are "
    f"its 95 % interval (Student's t on the logarithms; below {ENOUGH_SEEDS} pairs the ratios "
    "themselves), the number n of pairs, and the p-value of a paired permutation test, which "
    f"{ENOUGH_SEEDS} pairs cannot bring below {2 / 2**ENOUGH_SEEDS:.3f}."
)
_METRICS = (
    "round_latency_s.burst_mean",
    IMPAIRED,  # one row per kind of impairment, where there are several
    "round_latency_s.calm_mean",
    "round_latency_s.mean",
    "round_latency_s.p95",
    "round_latency_s.p99",
    "round_latency_s.max",
    "training_time_s",
    "time_to_target_s",
    "bytes_sent",
)
_DIFFERENCES = {
    "accuracy": ("Final test accuracy, difference (points)", formatting.POINTS),
    "perplexity": (
        "Final perplexity, difference (above 0 the reference is better)",
        formatting.RATIO,
    ),
}


def ratio_table(summary: dict[str, Any]) -> Table:
    """Every arm over the reference arm; above 1 the reference is better."""
    names = lookup.ratio_names(summary)
    # A metric without any ratio has no row here: the main table says why it has no value.
    shown = [
        metric
        for metric in lookup.with_programs(_METRICS, summary["arms"])
        if any(lookup.entry(summary, "ratios", name, metric).value is not None for name in names)
    ]
    rows = [
        _row(summary, "ratios", names, metric, describe(metric).label, formatting.RATIO)
        for metric in shown
    ]
    notes = [NOTE]
    task = summary.get("task_metric")
    if task:
        differences = [f"{left}-{right}" for left, right in lookup.pairs(list(summary["arms"]))]
        rows.append(_row(summary, "differences", differences, task, *_DIFFERENCES[task]))
        notes.append(f"The {task} is compared by difference: first minus second.")
    return Table(
        title=f"{summary['experiment']}: ratios of paired runs",
        columns=["", *names],
        rows=rows,
        notes=notes + _unpaired(summary),
        records=[
            {"ratio": name, "metric": metric}
            | lookup.entry(summary, "ratios", name, metric).as_json()
            | {"p_value": lookup.p_value(summary, "ratios", name, metric)}
            for name in names
            for metric in shown
        ],
    )


def _row(
    summary: dict[str, Any],
    section: str,
    names: list[str],
    metric: str,
    label: str,
    unit: formatting.Unit,
) -> list[Cell]:
    found = [
        cells.ratio(
            lookup.entry(summary, section, name, metric),
            unit,
            p=lookup.p_value(summary, section, name, metric),
        )
        for name in names
    ]
    return row(label, *found)


def _unpaired(summary: dict[str, Any]) -> list[str]:
    """Which seeds enter no ratio since only one arm of the pair has an ok run."""
    where = " at some point of the sweep" if lookup.points(summary) else ""
    return [
        f"{pair} leaves out {seeds_text(seeds)}{where}: only one arm of the pair has an ok run."
        for pair, seeds in summary.get("unpaired", {}).items()
    ]
