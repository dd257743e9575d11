"""The table of ratios: every arm over the reference arm, paired by seed."""

from __future__ import annotations

from typing import Any

from analysis.data.metrics import IMPAIRED, describe
from analysis.statistics.intervals import ENOUGH_SEEDS, holm
from analysis.summary import lookup
from analysis.tables import cells
from analysis.tables.rendering import Table, row
from analysis.words import formatting, no_pairs

NOTE = (
    "A ratio is the geometric mean of the ratios at the seeds that both arms have. Beside it are "
    f"its 95 % interval (Student's t on the logarithms; below {ENOUGH_SEEDS} pairs the ratios "
    "themselves), the number n of pairs, and the p-value of the paired t test that belongs to it. "
    "All p-values of this table are corrected together for being several (Holm)."
)
_METRICS = (
    "round_latency_s.burst_mean",
    "gather_latency_s.burst_mean",
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
    labelled = [
        (summary, "ratios", names, metric, describe(metric).label, formatting.RATIO)
        for metric in shown
    ]
    notes = [NOTE]
    task = summary.get("task_metric")
    if task:
        differences = [f"{left}-{right}" for left, right in lookup.pairs(list(summary["arms"]))]
        label, unit = _DIFFERENCES[task]
        labelled += [
            (part, "differences", differences, task, formatting.joined(label, where), unit)
            for part, where in _of_one_task(summary, task)
        ]
        notes.append(f"The {task} is compared by difference: first minus second.")
    compared = [(label, name) for _, _, pairs, _, label, _ in labelled for name in pairs]
    uncorrected = [
        lookup.p_value(part, section, name, metric)
        for part, section, pairs, metric, *_ in labelled
        for name in pairs
    ]
    corrected = dict(zip(compared, holm(uncorrected), strict=True))
    rows = [
        row(
            label,
            *(
                cells.ratio(
                    lookup.entry(part, section, name, metric), unit, p=corrected[label, name]
                )
                for name in pairs
            ),
        )
        for part, section, pairs, metric, label, unit in labelled
    ]
    return Table(
        title=f"{summary['experiment']}: ratios of paired runs",
        columns=["", *names],
        rows=rows,
        notes=notes + _unpaired(summary),
        records=[
            {"ratio": name, "metric": metric}
            | lookup.entry(summary, "ratios", name, metric).as_json()
            | {
                "p_value": lookup.p_value(summary, "ratios", name, metric),
                "p_value_corrected": corrected[describe(metric).label, name],
            }
            for name in names
            for metric in shown
        ],
    )


def _of_one_task(summary: dict[str, Any], task: str) -> list[tuple[dict[str, Any], str]]:
    """The whole summary; of several tasks the points that have this metric, and which they are."""
    if not lookup.is_of_several_tasks(summary):
        return [(summary, "")]
    return [
        (point, lookup.factors_text(point["factors"]))
        for point in lookup.points(summary)
        if any(lookup.entry(point, "arms", arm, task).value is not None for arm in point["arms"])
    ]


def _unpaired(summary: dict[str, Any]) -> list[str]:
    """Which seeds enter no ratio, and why."""
    where = " at some point of the sweep" if lookup.points(summary) else ""
    return [
        f"{pair} leaves out {seeds}{where}: {why}."
        for pair in lookup.unlike(summary)
        for seeds, why in no_pairs.left_out(summary, pair)
    ]
