"""The pieces that figures share: axes, lines with bands, shaded rounds, scales, legends."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis import style
from analysis.style import ArmStyle

_LOG_FROM = 8.0  # greatest over smallest value from which an axis is logarithmic
_MARKED_POINTS = 30  # about that many markers per line, however many points it has


def new_axes(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """A figure of the common size with one pair of labelled axes."""
    figure = Figure(figsize=style.SIZE_INCHES, layout="constrained")  # never known to pyplot
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return figure, axes


def by_arm(frame: pl.DataFrame, styles: dict[str, ArmStyle]) -> list[tuple[str, pl.DataFrame]]:
    """The rows of each arm that has some, in the order of the styles."""
    present = set(frame["arm"])
    return [(arm, frame.filter(pl.col("arm") == arm)) for arm in styles if arm in present]


def line_with_band(
    axes: Axes, line: pl.DataFrame, x: str, factor: float, arm_style: ArmStyle
) -> None:
    """A line of the means over a pale band from `low` to `high`."""
    colour = arm_style.colour.light
    axes.fill_between(
        line[x], line["low"] * factor, line["high"] * factor, color=colour, alpha=0.18, linewidth=0
    )
    axes.plot(
        line[x],
        line["mean"] * factor,
        color=colour,
        linestyle=arm_style.line,
        marker=arm_style.marker,
        markevery=max(1, line.height // _MARKED_POINTS),
    )


def shade_impairments(axes: Axes, rounds: pl.DataFrame, kinds: dict[str, str]) -> list[Patch]:
    """Shade the rounds that each kind of impairment hit; the patches are for the legend."""
    hit = rounds.select("round", "impairments").explode("impairments").drop_nulls().unique()
    patches = []
    found = {label: kinds.get(label, "other") for label in sorted(hit["impairments"].unique())}
    for kind in sorted(set(found.values()), key=lambda name: (name != "loss", name)):
        colour = (style.LOSS_BAND if kind == "loss" else style.OTHER_BAND).light
        labels = [label for label, of_kind in found.items() if of_kind == kind]
        struck = hit.filter(pl.col("impairments").is_in(labels))["round"].unique().sort()
        for begin, end in _stretches(struck.to_list()):
            axes.axvspan(begin - 0.5, end + 0.5, color=colour, linewidth=0, zorder=0.4)
        patches.append(Patch(color=colour, label=f"hit by {kind}"))
    return patches


def _stretches(values: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, as their first and last."""
    found: list[tuple[int, int]] = []
    for value in values:
        if found and value == found[-1][1] + 1:
            found[-1] = (found[-1][0], value)
        else:
            found.append((value, value))
    return found


def scale_axis(axis: Any, values: pl.Series) -> None:
    """Logarithmic where values span much, with ticks that read as plain numbers."""
    positive = values.filter(values > 0)
    if positive.is_empty():
        return
    low, high = float(positive.min()), float(positive.max())  # type: ignore[arg-type]
    if high / low < _LOG_FROM:
        (axis.axes.set_ylim if axis.axis_name == "y" else axis.axes.set_xlim)(0, None)
        return
    (axis.axes.set_yscale if axis.axis_name == "y" else axis.axes.set_xscale)("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 300 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def add_legend(
    figure: Figure,
    styles: dict[str, ArmStyle],
    present: set[str],
    further: list[Patch],
    *,
    markers: bool = True,
) -> None:
    """Above the axes, where it covers nothing."""
    handles: list[Any] = [
        Line2D(
            [],
            [],
            color=each.colour.light,
            linestyle=each.line,
            marker=each.marker if markers else "",
            label=arm,
        )
        for arm, each in styles.items()
        if arm in present
    ]
    handles += further
    # matplotlib fills columns first; people read rows first.
    in_rows = [handles[i] for column in range(3) for i in range(column, len(handles), 3)]
    figure.legend(
        handles=in_rows,
        loc="outside upper left",
        ncols=3,
        handlelength=2.4,
        columnspacing=1.2,
    )


def render(figure: Figure, kind: str) -> bytes:
    """The bytes of an `svg` or `png` file, the same for the same figure."""
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()
