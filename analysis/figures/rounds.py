"""The figures: latency over rounds and its distribution, accuracy over time, ratios.

Each function takes frames and returns a finished figure, or None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.data import metrics
from analysis.data.load import Results
from analysis.figures import learning, style, sweeps
from analysis.figures.parts import (
    CRITICAL,
    add_legend,
    by_arm,
    line_with_band,
    new_axes,
    new_axes_with_strips,
    new_panels,
    phase_strips,
    render,
    scale_axis,
    shade_impairments,
)
from analysis.figures.style import ArmStyle
from analysis.statistics.intervals import Estimate
from analysis.tables.comparison import bounds
from analysis.words import formatting


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
    quality = summary.get("task_metric") or "accuracy"
    worse = "lower" if quality == "accuracy" else "higher"
    makers: list[tuple[str, str, str, Callable[[], Figure | None]]] = [
        (
            "latency-over-rounds",
            "Round latency over the rounds",
            "Gather plus broadcast, mean over the ok runs; the pale band spans lowest to highest. "
            "Look at the shaded rounds, where an impairment was active: the lower line rides "
            "through it faster. Outside them the lines show what tolerance alone saves. The strips "
            "below are dark where a round was in a critical phase, paler where only in some runs.",
            lambda: latency_over_rounds(results.rounds, styles, kinds),
        ),
        (
            "latency-cdf",
            "Distribution of round latency",
            "For each latency, the share of rounds (all ok runs together) that were at least as "
            "fast, calm rounds and rounds hit by an impairment apart. Further left is faster; look "
            "at how far the tail at the top reaches right.",
            lambda: latency_cdf(results.rounds, styles),
        ),
        (
            "latency-cdf-by-point",
            "Round latency in bursts, by point of the sweep",
            "As above, rounds hit by an impairment only, at each point alone (at most six).",
            lambda: sweeps.cdf_by_point(results.rounds, summary, styles),
        ),
        (
            "ratio-along-factor",
            "The headline ratio along the sweep",
            "Points are ratios of paired runs with 95 % intervals; above 1 the reference is "
            "faster. The bounds are what theory allows fixed-low/dblp if only bytes, or only "
            "passes, cost time: look between which of them the measured line runs.",
            lambda: sweeps.ratio_along_factor(summary, styles),
        ),
        (
            f"{quality}-over-time",
            f"Test {quality} over training time",
            "Mean over workers and ok runs at each evaluation; the pale band spans lowest to "
            f"highest run. A line further left learns as well in less time; a {worse} end is what "
            "tolerated loss costs.",
            lambda: learning.quality(results.training, styles, "elapsed_s"),
        ),
        (
            f"{quality}-over-rounds",
            f"Test {quality} over the rounds",
            "The same without the clock: what is left between the lines is what loss does to "
            "learning.",
            lambda: learning.quality(results.training, styles, "round"),
        ),
        (
            "learning-along-factor",
            "What is learnt, and how fast, along the sweep",
            "Every arm's final test metric and mean round latency at each point, with 95 % "
            "intervals over seeds.",
            lambda: sweeps.learning_along_factor(summary, styles),
        ),
        (
            "layer-loss",
            "Realised loss by layer",
            "The stronger a layer's colour, the more of it receivers went without, mean over "
            "all transfers; at the right the least and the most of any layer. Chunks sent in order "
            "lose the last layers, shuffled ones lose all layers alike.",
            lambda: learning.layer_strips(results.layer_loss, styles),
        ),
        (
            "gradient-error",
            "What loss does to the gradient",
            "L2 norm of (applied gradient - lossless mean) over that of the lossless mean, in the "
            "rounds that were measured; mean over workers and runs, the band spans the runs.",
            lambda: learning.gradient_error(results.effects, styles),
        ),
        (
            "divergence",
            "How far the replicas drift apart",
            "Root mean square distance of the workers' weights from their mean, over the mean's "
            "norm. It grows where each worker loses other parts of the broadcast.",
            lambda: learning.divergence(results.effects, styles),
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
    unit = formatting.unit_for("s", known["latency_s"])
    arms = [arm for arm, _ in by_arm(known, styles)]
    figure, axes, phases = new_axes_with_strips(f"Round latency ({unit.symbol})", len(arms))
    shaded = shade_impairments(axes, known, kinds)
    phase_strips(phases, known, arms)
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
    add_legend(figure, styles, set(known["arm"]), [*shaded, CRITICAL])
    return figure


def latency_cdf(rounds: pl.DataFrame, styles: dict[str, ArmStyle]) -> Figure | None:
    """The empirical distribution of each arm's round latencies, calm and burst rounds apart."""
    known = rounds.filter(pl.col("latency_s").is_not_null())
    if known.is_empty():
        return None
    unit = formatting.unit_for("s", known["latency_s"])
    hit = pl.col("impairments").list.len() > 0
    parts = [
        (title, rows)
        for title, rows in (
            ("calm rounds", known.filter(~hit)),
            ("rounds hit by an impairment", known.filter(hit)),
        )
        if not rows.is_empty()
    ]
    figure, axes_of = new_panels(len(parts))
    for axes, (title, rows) in zip(axes_of, parts, strict=True):
        for arm, of_arm in by_arm(rows, styles):
            sweeps.step(axes, of_arm["latency_s"].to_numpy() * unit.factor, styles[arm])
        if len(parts) > 1:
            axes.set_title(title, loc="left", fontsize=10)
        axes.set_ylim(0, 102)
        axes.set_ylabel("Rounds (%)")
    # The scale is chosen by the seconds' ratio: a unit does not change it.
    scale_axis(axes_of[-1].xaxis, known["latency_s"] * unit.factor)
    axes_of[-1].set_xlabel(f"Round latency ({unit.symbol})")
    add_legend(figure, styles, set(known["arm"]), [], markers=False)
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
