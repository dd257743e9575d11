"""Figures of round latency: over the rounds, and its distribution."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from analysis.figures import parts
from analysis.figures.style import ArmStyle
from analysis.words import formatting

_HIT = pl.col("impairments").list.len() > 0


def has_panels(rounds: pl.DataFrame) -> bool:
    """Whether each arm has a panel in `over_rounds`."""
    return parts.too_many_for_bands(set(rounds["arm"]))


def over_rounds(
    rounds: pl.DataFrame, styles: dict[str, ArmStyle], kinds: dict[str, str]
) -> Figure | None:
    """A line per arm over the rounds; rounds that an impairment hit are shaded by its kind."""
    known = rounds.filter(pl.col("latency_s").is_not_null())
    if known.is_empty():
        return None
    unit = formatting.unit_for("s", known["latency_s"])
    of_arms = dict(parts.by_arm(known, styles))
    apart = has_panels(known)
    shown = {arm: [arm] for arm in of_arms} if apart else {"": list(of_arms)}
    has_phases = known["critical"].is_not_null().any()  # programs have none
    strips = list(of_arms) if has_phases else []
    figure, panels, below = parts.new_round_panels(len(shown), strips)
    marks = []
    if below is not None:
        parts.phase_strips(below, known, strips)
        marks = [parts.CRITICAL]
    for axes, (title, arms) in zip(panels, shown.items(), strict=True):
        shaded = parts.shade_impairments(axes, known, kinds)
        some = {arm: styles[arm] for arm in arms}
        lines = known.filter(pl.col("arm").is_in(arms))
        parts.draw_lines_by_round(axes, lines, "latency_s", some, factor=unit.factor)
        parts.scale_axis(axes.yaxis, known["latency_s"])
        if apart and axes.get_yscale() == "log":  # a low panel has room for few
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.set_title(title, loc="left", fontsize=9)
    label = f"Round latency ({unit.symbol})"
    if apart:
        figure.supylabel(label, fontsize="medium")
    else:
        panels[0].set_ylabel(label)
    numbers = known["round"].to_numpy()
    panels[-1].set_xlim(numbers.min() - 0.5, numbers.max() + 0.5)
    named = set() if apart else set(known["arm"])
    parts.add_legend(figure, styles, named, [*shaded, *marks])
    return figure


def distribution(rounds: pl.DataFrame, styles: dict[str, ArmStyle]) -> Figure | None:
    """The empirical distribution of each arm's round latencies, calm and burst rounds apart."""
    known = rounds.filter(pl.col("latency_s").is_not_null())
    if known.is_empty():
        return None
    unit = formatting.unit_for("s", known["latency_s"])
    panels = [
        (title, rows)
        for title, rows in (
            ("calm rounds", known.filter(~_HIT)),
            ("rounds hit by an impairment", known.filter(_HIT)),
        )
        if not rows.is_empty()
    ]
    figure, axes_of = parts.new_panels(len(panels))
    for axes, (title, rows) in zip(axes_of, panels, strict=True):
        for arm, of_arm in parts.by_arm(rows, styles):
            _step(axes, of_arm["latency_s"].to_numpy() * unit.factor, styles[arm])
        if len(panels) > 1:
            axes.set_title(title, loc="left", fontsize=10)
        axes.set_ylim(0, 102)
        axes.set_ylabel("Rounds (%)")
    # The scale is chosen by the seconds' ratio: a unit does not change it.
    parts.scale_axis(axes_of[-1].xaxis, known["latency_s"] * unit.factor)
    axes_of[-1].set_xlabel(f"Round latency ({unit.symbol})")
    parts.add_legend(figure, styles, set(known["arm"]), [], markers=False)
    return figure


def _step(axes: Axes, values: np.ndarray, arm_style: ArmStyle) -> None:
    """The empirical distribution of some values as a line of steps, in percent."""
    ordered = np.sort(values)
    share = np.arange(1, len(ordered) + 1) / len(ordered) * 100
    axes.step(
        np.concatenate([ordered[:1], ordered]),
        np.concatenate([[0.0], share]),
        where="post",
        color=arm_style.colour.light,
        linestyle=arm_style.line,
    )
