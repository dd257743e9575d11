"""Figures over the rounds: latency and its distribution, quality, shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, PercentFormatter

from analysis import formatting
from analysis.data.measure import task_metric
from analysis.figures import style
from analysis.figures.style import ArmStyle

_HIT = pl.col("impairments").list.len() > 0


def over_rounds(
    rounds: pl.DataFrame, styles: dict[str, ArmStyle], kinds: dict[str, str]
) -> Figure | None:
    """A line per arm over the rounds; rounds that an impairment hit are shaded by its kind."""
    rounds = rounds.filter(pl.col("latency_s").is_not_null())
    if rounds.is_empty():
        return None
    unit = formatting.unit_for("s", rounds["latency_s"])
    of_arms = dict(style.by_arm(rounds, styles))
    apart = style.too_many_for_bands(styles)
    shown = {arm: [arm] for arm in of_arms} if apart else {"": list(of_arms)}
    figure, panels = style.new_panels(len(shown), share_y=True)
    for axes, (title, arms) in zip(panels, shown.items(), strict=True):
        axes.set_title(style.in_lines(title, style.TITLE_WIDTH), loc="left", fontsize=9)
        shaded = style.shade_impairments(axes, rounds, kinds)
        some = {arm: styles[arm] for arm in arms}
        lines = rounds.filter(pl.col("arm").is_in(arms))
        style.draw_lines_by_round(axes, lines, "latency_s", some, factor=unit.factor)
        style.scale_axis(axes.yaxis, rounds["latency_s"])
        if apart and axes.get_yscale() == "log":  # a low panel has room for few
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    label = f"Round latency ({unit.symbol})"
    if apart:
        figure.supylabel(label, fontsize="medium")
    else:
        panels[0].set_ylabel(label)
    panels[-1].set_xlabel("Round")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    numbers = rounds["round"].to_numpy()
    panels[-1].set_xlim(numbers.min() - 0.5, numbers.max() + 0.5)
    named = set() if apart else set(rounds["arm"])
    style.add_legend(figure, styles, named, shaded)
    return figure


def distribution(rounds: pl.DataFrame, styles: dict[str, ArmStyle]) -> Figure | None:
    rounds = rounds.filter(pl.col("latency_s").is_not_null())
    if rounds.is_empty():
        return None
    unit = formatting.unit_for("s", rounds["latency_s"])
    panels = [
        (title, rows)
        for title, rows in (
            ("calm rounds", rounds.filter(~_HIT)),
            ("rounds hit by an impairment", rounds.filter(_HIT)),
        )
        if not rows.is_empty()
    ]
    figure, axes_of = style.new_panels(len(panels))
    for axes, (title, rows) in zip(axes_of, panels, strict=True):
        for arm, of_arm in style.by_arm(rows, styles):
            axes.ecdf(
                of_arm["latency_s"].to_numpy() * unit.factor,
                color=styles[arm].colour.light,
                linestyle=styles[arm].line,
            )
        if len(panels) > 1:
            axes.set_title(title, loc="left", fontsize=10)
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
        axes.set_ylabel("Rounds (%)")
    # The scale is chosen by the seconds' ratio: a unit does not change it.
    style.scale_axis(axes_of[-1].xaxis, rounds["latency_s"] * unit.factor)
    axes_of[-1].set_xlabel(f"Round latency ({unit.symbol})")
    style.add_legend(figure, styles, set(rounds["arm"]), [], markers=False)
    return figure


def quality(
    evaluations: pl.DataFrame,
    styles: dict[str, ArmStyle],
    over: Literal["elapsed_s", "round"],
    tasks: Mapping[str, str],
) -> Figure | None:
    metric = task_metric(evaluations)
    if metric is None:
        return None
    of_run = evaluations.drop_nulls([metric, over])
    of_run = of_run.with_columns(task=pl.col("run_key").replace_strict(tasks, default=None))
    factor, present = 100.0 if metric == "accuracy" else 1.0, set(of_run["task"])
    shown = [task for task in dict.fromkeys(tasks.values()) if task in present][: style.MOST_PANELS]
    if not shown:
        return None
    figure, axes_of = style.new_grid(len(shown))
    for axes, task in zip(axes_of, shown, strict=True):
        rows = of_run.filter(task=task)
        style.draw_lines_by_round(axes, rows, metric, styles, factor=factor, over=over)
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
        style.scale_axis(axes_of[0].yaxis, of_run[metric])
    style.add_legend(figure, styles, set(of_run["arm"]), [])
    return figure


def share(
    measured: pl.DataFrame,
    styles: dict[str, ArmStyle],
    name: str,
    label: str,
    hit: tuple[pl.DataFrame, dict[str, str]] | None = None,
) -> Figure | None:
    """A share in percent over its rounds: mean and range of the seeds; `hit` shades rounds."""
    rows = measured.filter(pl.col(name).is_not_null())
    if rows.is_empty() or rows[name].max() == 0:
        return None
    figure, (axes,) = style.new_panels(1)
    axes.set_xlabel("Round")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    shaded = style.shade_impairments(axes, *hit) if hit else []
    style.draw_lines_by_round(axes, rows, name, styles, factor=100.0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    if hit:
        axes.set_xlim(-0.5, float(rows["round"].max()) + 0.5)  # type: ignore[arg-type]
    style.add_legend(figure, styles, set(rows["arm"]), shaded)
    return figure
