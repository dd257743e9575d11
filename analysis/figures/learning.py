"""Figures of learning: quality over time and rounds, replicas' divergence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.data import learning
from analysis.data.metrics import TASK_METRICS
from analysis.figures import parts
from analysis.figures.style import ArmStyle
from analysis.summary.lookup import entry, points
from analysis.words import formatting

_FEWEST_ALONG = 3  # points of a sweep that are worth a line


def quality(
    evaluations: pl.DataFrame,
    styles: dict[str, ArmStyle],
    over: Literal["elapsed_s", "round"],
    tasks: Mapping[str, str],
) -> Figure | None:
    """Mean accuracy, or perplexity, over runs at each evaluation, over time or over rounds."""
    metric = learning.task_metric(evaluations)
    if metric is None:
        return None
    of_run = evaluations.drop_nulls([metric, over])
    factor = 100.0 if metric == "accuracy" else 1.0
    present = set(of_run["run_key"])
    by_task: dict[str, list[str]] = {}
    for key, task in tasks.items():
        if key in present:
            by_task.setdefault(task, []).append(key)
    if not by_task:
        return None
    shown = dict(list(by_task.items())[: parts.MOST_PANELS])
    figure, axes_of = parts.new_grid(len(shown))
    for axes, (task, of_task) in zip(axes_of, shown.items(), strict=True):
        rows = of_run.filter(pl.col("run_key").is_in(of_task))
        parts.draw_lines_by_round(axes, rows, metric, styles, factor=factor, over=over)
        axes.set_xlabel("Training time (s)" if over == "elapsed_s" else "Round")
        axes.set_xlim(left=0)
        if over == "round":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(shown) > 1:
            axes.set_title(task, loc="left", fontsize=9.5)
    axes_of[0].set_ylabel("Test accuracy (%)" if metric == "accuracy" else "Test perplexity")
    if metric == "accuracy":
        axes_of[0].set_ylim(0, 102)
    else:
        parts.scale_axis(axes_of[0].yaxis, of_run[metric])
    parts.add_legend(figure, styles, set(of_run["arm"]), [])
    return figure


def deviation(
    deviations: pl.DataFrame, styles: dict[str, ArmStyle], name: str, label: str
) -> Figure | None:
    """A share in percent over the rounds in which it was measured: mean and range of the seeds."""
    known = deviations.filter(pl.col(name).is_not_null())
    if known.is_empty() or known[name].max() == 0:
        return None
    figure, axes = parts.new_axes("Round", label)
    parts.draw_lines_by_round(axes, known, name, styles, factor=100.0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    parts.add_legend(figure, styles, set(known["arm"]), [])
    return figure


def loss_over_rounds(
    known: pl.DataFrame,
    rounds: pl.DataFrame,
    styles: dict[str, ArmStyle],
    kinds: dict[str, str],
) -> Figure | None:
    """The share of the gathered chunks that receivers went without, `loss`, over the rounds."""
    if known.is_empty() or known["loss"].max() == 0:
        return None
    figure, axes = parts.new_axes("Round", "Realised loss, gather (%)")
    shaded = parts.shade_impairments(axes, rounds, kinds)
    parts.draw_lines_by_round(axes, known, "loss", styles, factor=100.0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.5, float(known["round"].max()) + 0.5)  # type: ignore[arg-type]
    parts.add_legend(figure, styles, set(known["arm"]), shaded)
    return figure


def along_factor(summary: dict[str, Any], styles: dict[str, ArmStyle]) -> Figure | None:
    """Every arm's final test metric and mean latency, along a factor that is a number."""
    found = points(summary)
    names = list(found[0]["factors"]) if found else []
    arms = list(summary["arms"])
    metric = next(
        (
            each
            for each in TASK_METRICS
            if any(entry(p, "arms", arm, each).value is not None for p in found for arm in arms)
        ),
        None,
    )
    if metric is None or len(names) != 1 or len(found) < _FEWEST_ALONG:
        return None
    levels = [point["factors"][names[0]] for point in found]
    if not parts.all_numbers(levels):
        return None
    at = [float(level) for level in levels]
    figure, axes_of = parts.new_panels(2)
    present: set[str] = set()
    for axes, name in zip(axes_of, (metric, "round_latency_s.mean"), strict=True):
        cells = {arm: [entry(p, "arms", arm, name) for p in found] for arm in arms}
        values = [each.value for estimates in cells.values() for each in estimates]
        label, unit = formatting.metric_unit(name, values)
        for arm, estimates in cells.items():
            if parts.line_with_intervals(axes, at, estimates, styles[arm], unit.factor):
                present.add(arm)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    parts.factor_axis(axes_of[-1], at)
    axes_of[-1].set_xlabel(names[0].split(".")[-1])
    parts.add_legend(figure, styles, present, [])
    return figure
