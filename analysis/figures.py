"""The figures: latency over rounds and its distribution, accuracy over time, ratios.

Each function takes frames and returns a finished figure, or None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import metrics, numbers, style
from analysis.comparison import bounds
from analysis.figure_parts import (
    add_legend,
    by_arm,
    line_with_band,
    new_axes,
    render,
    scale_axis,
    shade_impairments,
)
from analysis.load import Results
from analysis.statistics import Estimate
from analysis.style import ArmStyle


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A rendered figure and the words below it."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


def draw_all(results: Results, summary: dict[str, Any]) -> list[Drawing]:
    """Every figure for which there are data, rendered; the same input gives the same bytes."""
    kinds: dict[str, str] = {}
    for run in results.ok_runs:
        kinds |= metrics.impairment_kinds(run.config.get("impairments"))
    styles = style.arm_styles(results.arms)
    makers: list[tuple[str, str, str, Callable[[], Figure | None]]] = [
        (
            "latency-over-rounds",
            "Round latency over the rounds",
            "Gather plus broadcast, mean over the ok runs; the pale band spans lowest to highest. "
            "Look at the shaded rounds, where an impairment was active: the lower line rides "
            "through it faster. Outside them the lines show what tolerance alone saves.",
            lambda: latency_over_rounds(results.rounds, styles, kinds),
        ),
        (
            "latency-cdf",
            "Distribution of round latency",
            "For each latency, the share of rounds (all ok runs together) that were at least as "
            "fast. Further left is faster; look at how far the tail at the top reaches right.",
            lambda: latency_cdf(results.rounds, styles),
        ),
        (
            "accuracy-over-time",
            "Test accuracy over training time",
            "Mean over workers and ok runs at each evaluation; the pale band spans lowest to "
            "highest run. A line further left learns as well in less time; a lower end is what "
            "tolerated loss costs.",
            lambda: accuracy_over_time(results.training, styles),
        ),
        (
            "ratios",
            "Baseline over DBLP: ours beside the paper's",
            "Points are ours with their 95 % interval; grey bars and ticks are what the paper "
            "reports over its models and loss rates; diamonds are limits by arithmetic. Right of "
            "1 DBLP is faster.",
            lambda: ratios_beside_paper(summary),
        ),
    ]
    drawings = []
    with matplotlib.rc_context(style.RC):
        for name, title, caption, make in makers:
            figure = make()
            if figure is not None:
                drawings.append(
                    Drawing(
                        name=name,
                        title=title,
                        caption=caption,
                        svg=render(figure, "svg").decode(),
                        png=render(figure, "png"),
                    )
                )
    return drawings


def latency_over_rounds(
    rounds: pl.DataFrame, styles: dict[str, ArmStyle], kinds: dict[str, str]
) -> Figure | None:
    """One line per arm over the rounds; rounds that an impairment hit are shaded by its kind."""
    known = rounds.filter(pl.col("latency_s").is_not_null())
    if known.is_empty():
        return None
    latency = pl.col("latency_s")
    unit = numbers.unit_for("s", known["latency_s"])
    figure, axes = new_axes("Round", f"Round latency ({unit.symbol})")
    shaded = shade_impairments(axes, known, kinds)
    for arm, rows in by_arm(known, styles):
        line = (
            rows.group_by("round")
            .agg(
                latency.mean().alias("mean"),
                latency.min().alias("low"),
                latency.max().alias("high"),
            )
            .sort("round")
        )
        line_with_band(axes, line, "round", unit.factor, styles[arm])
    scale_axis(axes.yaxis, known["latency_s"])
    shown = known["round"].to_numpy()
    axes.set_xlim(shown.min() - 0.5, shown.max() + 0.5)
    add_legend(figure, styles, set(known["arm"]), shaded)
    return figure


def latency_cdf(rounds: pl.DataFrame, styles: dict[str, ArmStyle]) -> Figure | None:
    """The empirical distribution of each arm's round latencies, all runs together."""
    known = rounds.filter(pl.col("latency_s").is_not_null())
    if known.is_empty():
        return None
    unit = numbers.unit_for("s", known["latency_s"])
    figure, axes = new_axes(f"Round latency ({unit.symbol})", "Share of rounds (%)")
    for arm, rows in by_arm(known, styles):
        values = np.sort(rows["latency_s"].to_numpy()) * unit.factor
        share = np.arange(1, len(values) + 1) / len(values) * 100
        axes.step(
            np.concatenate([values[:1], values]),
            np.concatenate([[0.0], share]),
            where="post",
            color=styles[arm].colour.light,
            linestyle=styles[arm].line,
        )
    scale_axis(axes.xaxis, known["latency_s"])
    axes.set_ylim(0, 102)
    add_legend(figure, styles, set(known["arm"]), [], markers=False)
    return figure


def accuracy_over_time(training: pl.DataFrame, styles: dict[str, ArmStyle]) -> Figure | None:
    """Mean accuracy over runs at each evaluation, at the mean training time of that evaluation."""
    known = training.filter(pl.col("accuracy").is_not_null() & pl.col("elapsed_s").is_not_null())
    if known.is_empty():
        return None
    figure, axes = new_axes("Training time (s)", "Test accuracy (%)")
    of_run = known.group_by("arm", "run_key", "round").agg(
        pl.col("accuracy").mean(), pl.col("elapsed_s").mean()
    )
    accuracy = pl.col("accuracy")
    for arm, rows in by_arm(of_run, styles):
        line = (
            rows.group_by("round")
            .agg(
                pl.col("elapsed_s").mean(),
                accuracy.mean().alias("mean"),
                accuracy.min().alias("low"),
                accuracy.max().alias("high"),
            )
            .sort("elapsed_s")
        )
        line_with_band(axes, line, "elapsed_s", 100.0, styles[arm])
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0)
    add_legend(figure, styles, set(known["arm"]), [])
    return figure


def ratios_beside_paper(summary: dict[str, Any]) -> Figure | None:
    """One row per metric: our ratio with its interval above what the paper reports for it."""
    rows = []
    for metric, entries in summary["published"].items():
        ratios = [each for each in entries if each["compared"].startswith("ratio")]
        if ratios and ratios[0]["ours"]["value"] is not None:
            rows.append((metrics.describe(metric).label, Estimate(**ratios[0]["ours"]), ratios))
    if not rows:
        return None
    figure, axes = new_axes(f"Ratio {rows[0][2][0]['compared'].split(' ', 1)[1]}", "")
    figure.set_size_inches(style.SIZE_INCHES[0], 1.3 + 0.52 * len(rows))
    ours = style.BLUE.light
    for position, (_, estimate, ratios) in enumerate(rows):
        for each in ratios:
            low, high = bounds(each)
            y = position + 0.17
            if each["confidence"] == "DERIVED":
                axes.plot([low], [y], "D", color=style.GOLD.light, markersize=5)
            elif low == high:
                axes.plot(
                    [low], [y], "|", color=style.STEEL.light, markersize=10, markeredgewidth=2
                )
            else:
                axes.plot(
                    [low, high], [y, y], color=style.STEEL.light, linewidth=6, solid_capstyle="butt"
                )
        if estimate.low is not None and estimate.high is not None:
            axes.plot([estimate.low, estimate.high], [position - 0.17] * 2, color=ours, linewidth=2)
        assert estimate.value is not None
        axes.plot([estimate.value], [position - 0.17], "o", color=ours, markersize=6)
    axes.axvline(1, color=style.MUTED.light, linewidth=0.9, zorder=0.5)
    axes.set_yticks(range(len(rows)), [label.replace(", ", ",\n") for label, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(left=0)
    handles: list[Any] = [
        Line2D([], [], color=ours, marker="o", markersize=6, linewidth=2, label="ours"),
        Line2D([], [], color=style.STEEL.light, linewidth=6, label="paper"),
        Line2D([], [], color=style.GOLD.light, marker="D", linestyle="", label="limit"),
    ]
    if not any(each["confidence"] == "DERIVED" for _, _, ratios in rows for each in ratios):
        handles.pop()
    figure.legend(handles=handles, loc="outside upper left", ncols=3)
    return figure
