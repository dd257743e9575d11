"""Figures of learning: quality over time and rounds, replicas' divergence, loss by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from analysis.data import learning
from analysis.data.metrics import TASK_METRICS
from analysis.figures import parts, style
from analysis.figures.style import ArmStyle
from analysis.summary.lookup import entry, points
from analysis.words import formatting

_MOST_COLUMNS = 48  # of a strip; more layers are averaged in groups
_LEGS = ("gather", "broadcast")
_PALEST = 0.06
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


def divergence(deviations: pl.DataFrame, styles: dict[str, ArmStyle]) -> Figure | None:
    """The distance between the workers' replicas, over the rounds in which it was measured."""
    known = deviations.filter(pl.col("divergence").is_not_null())
    if known.is_empty() or known["divergence"].max() == 0:
        return None
    return _percent_over_rounds(known, "divergence", "Divergence of replicas (%)", styles)


def gradient_error(deviations: pl.DataFrame, styles: dict[str, ArmStyle]) -> Figure | None:
    """Relative error of the gradient that workers applied, over the measured rounds."""
    name = "relative_error.applied"
    known = deviations.filter(pl.col(name).is_not_null())
    if known.is_empty():
        return None
    return _percent_over_rounds(known, name, "Relative error of the\napplied gradient (%)", styles)


def _percent_over_rounds(
    known: pl.DataFrame, name: str, label: str, styles: dict[str, ArmStyle]
) -> Figure:
    """The mean over seeds of a share, with the range of the seeds around it."""
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


def layer_strips(layer_loss: pl.DataFrame, styles: dict[str, ArmStyle]) -> Figure | None:
    """A strip per arm and leg: the stronger a layer's colour, the more of it was missing."""
    if layer_loss.is_empty():
        return None
    arms = [arm for arm, _ in parts.by_arm(layer_loss, styles)]
    layers = int(layer_loss["layer"].max())  # type: ignore[arg-type]
    height = 1.1 + 2 * (0.3 + 0.27 * len(arms))
    figure = Figure(figsize=(style.SIZE_INCHES[0], height), layout="constrained")
    axes_of: list[Axes] = list(figure.subplots(2, 1))
    for axes, leg in zip(axes_of, _LEGS, strict=True):
        for row, arm in enumerate(arms):
            shares = _by_layer(layer_loss, arm, leg, layers)
            groups = np.array_split(shares, min(layers, _MOST_COLUMNS))
            begin = 0.5
            for group in groups:
                known = group[~np.isnan(group)]
                if len(known):
                    axes.add_patch(_patch(begin, row, len(group), float(known.mean())))
                begin += len(group)
            if not np.isnan(shares).all():
                # Beside the strip: darkness alone is no number.
                lowest, highest = np.nanmin(shares), np.nanmax(shares)
                text = f"{_percent(lowest)}{formatting.TO}{_percent(highest)} %"
                axes.text(layers + 0.5 + 0.02 * layers, row, text, va="center", fontsize=8.5)
        axes.set_title(f"{leg} leg", loc="left", fontsize=10)
        axes.set_yticks(range(len(arms)), arms)
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.set_xlim(0.5, layers * 1.27 + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.set_xticks([tick for tick in axes.get_xticks() if 1 <= tick <= layers])
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    axes_of[-1].set_xlabel("Layer, in the order of the payload")
    return figure


def _patch(begin: float, row: int, width: int, share: float) -> Rectangle:
    opacity = _PALEST + (1 - _PALEST) * min(1.0, share)
    return Rectangle(
        (begin, row - 0.4),
        width,
        0.8,
        facecolor=to_rgba(style.BLUE.light, opacity),
        edgecolor=style.PAPER.light,
        linewidth=0.4,
    )


def _by_layer(layer_loss: pl.DataFrame, arm: str, leg: str, layers: int) -> np.ndarray:
    rows = layer_loss.filter((pl.col("arm") == arm) & (pl.col("leg") == leg))
    means = rows.group_by("layer").agg(pl.col("missing").mean())
    shares = np.full(layers, np.nan)
    shares[means["layer"].to_numpy() - 1] = means["missing"].to_numpy()
    return shares


def _percent(share: float) -> str:
    return f"{share * 100:.0f}" if share >= 0.0995 or share == 0 else f"{share * 100:.1f}"
