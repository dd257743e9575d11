"""Figures of a sweep: the headline ratio along a factor, and distributions point by point."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.data.learning import TASK_METRICS
from analysis.data.load import FACTOR_PREFIX
from analysis.data.metrics import describe
from analysis.figures import style
from analysis.figures.parts import add_legend, by_arm, new_panels, scale_axis
from analysis.figures.style import ArmStyle
from analysis.statistics.intervals import Estimate
from analysis.summary.summary import entry, pairs
from analysis.tables.sweep_points import point_label
from analysis.words import formatting

_LOG_FROM = 8.0
_MOST_PANELS = 6
_FEWEST_ALONG = 3  # points of a sweep that are worth a line
_LONG_LABEL = 8
_PAPER_ALPHA = 0.22
_METRICS = (
    ("round_latency_s.burst_mean", "Burst round latency"),
    ("round_latency_s.mean", "Mean round latency"),
    ("training_time_s", "Training time"),
)


def ratio_along_factor(summary: dict[str, Any], styles: dict[str, ArmStyle]) -> Figure | None:
    """Ratios to the reference arm along the factor with most values, beside the two bounds.

    Other factors, if there are any, have a panel per combination of their values.
    """
    points = summary.get("points") or []
    if len(points) < 2:
        return None
    names = list(points[0]["factors"])
    values = {name: list(dict.fromkeys(p["factors"][name] for p in points)) for name in names}
    along = max(names, key=lambda name: (len(values[name]), _all_numbers(values[name])))
    compared = [(left, f"{left}/{right}") for left, right in pairs(list(summary["arms"]))]
    metric, label = next(
        (
            each
            for each in _METRICS
            if any(entry(p, "ratios", pair, each[0]).value for p in points for _, pair in compared)
        ),
        (None, ""),
    )
    if metric is None or len(values[along]) < 2:
        return None
    panels: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        rest = {name: value for name, value in point["factors"].items() if name != along}
        panels.setdefault(point_label({"factors": rest}), []).append(point)
    shown = dict(list(panels.items())[:_MOST_PANELS])
    figure, axes_of = _grid(len(shown))
    numeric = _all_numbers(values[along])
    present: set[str] = set()
    published: set[tuple[float, float]] = set()
    for axes, (title, cells) in zip(axes_of, shown.items(), strict=False):
        at = [_number(p["factors"][along]) if numeric else float(i) for i, p in enumerate(cells)]
        for left, pair in compared:
            present |= _ratio_line(axes, cells, at, pair, metric, left, styles[left])
        _bounds(axes, cells, at)
        published |= _paper(axes, cells, metric)
        axes.axhline(1, color=style.MUTED.light, linewidth=0.9, zorder=0.5)
        axes.set_title(title, loc="left", fontsize=9.5)
        _ratio_axis(axes, cells, [pair for _, pair in compared], metric)
        if numeric:
            _numeric_axis(axes, at)
        else:
            labels = [str(p["factors"][along]) for p in cells]
            long = max(map(len, labels)) > _LONG_LABEL
            slant: dict[str, Any] = {"rotation": 25, "ha": "right"} if long else {}
            axes.set_xticks(at, labels, fontsize=8, **slant)
        axes.set_xlabel(along.split(".")[-1])
    axes_of[0].set_ylabel(f"{label}\nover {compared[0][1].split('/')[1]} (x)")
    further: list[Patch | Line2D] = [
        Line2D([], [], color=style.MUTED.light, linestyle=line, label=text)
        for key, line, text in _BOUNDS
        if any(key in p["limits"] for p in points)
    ]
    if published:
        further.append(Patch(color=style.STEEL.light, alpha=_PAPER_ALPHA, label="paper's range"))
    add_legend(figure, styles, present, further)
    return figure


def learning_along_factor(summary: dict[str, Any], styles: dict[str, ArmStyle]) -> Figure | None:
    """What every arm learns and how long its rounds take, along a factor that is a number."""
    points = summary.get("points") or []
    names = list(points[0]["factors"]) if points else []
    arms = list(summary["arms"])
    metric = next(
        (
            each
            for each in TASK_METRICS
            if any(entry(p, "arms", arm, each).value is not None for p in points for arm in arms)
        ),
        None,
    )
    if metric is None or len(names) != 1 or len(points) < _FEWEST_ALONG:
        return None
    values = [point["factors"][names[0]] for point in points]
    if not _all_numbers(values):
        return None
    at = [_number(value) for value in values]
    figure, axes_of = new_panels(2)
    present: set[str] = set()
    for axes, name in zip(axes_of, (metric, "round_latency_s.mean"), strict=True):
        cells = {arm: [entry(p, "arms", arm, name) for p in points] for arm in arms}
        described = describe(name)
        unit = formatting.unit_for(
            described.unit, [each.value for found in cells.values() for each in found]
        )
        for arm, found in cells.items():
            if any(each.value is not None for each in found):
                _value_line(axes, at, found, unit.factor, styles[arm])
                present.add(arm)
        axes.set_ylabel(f"{described.label} ({unit.symbol})" if unit.symbol else described.label)
        axes.set_ylim(bottom=0)
    _numeric_axis(axes_of[-1], at)
    axes_of[-1].set_xlabel(names[0].split(".")[-1])
    add_legend(figure, styles, present, [])
    return figure


def _value_line(
    axes: Axes, at: list[float], found: list[Estimate], factor: float, arm_style: ArmStyle
) -> None:
    known = [(x, each) for x, each in zip(at, found, strict=True) if each.value is not None]
    colour = arm_style.colour.light
    axes.plot(
        [x for x, _ in known],
        [(each.value or 0.0) * factor for _, each in known],
        color=colour,
        linestyle=arm_style.line,
        marker=arm_style.marker,
    )
    for x, each in known:
        if each.low is not None and each.high is not None:
            axes.plot([x, x], [each.low * factor, each.high * factor], color=colour, linewidth=1.2)


_BOUNDS = (("bytes", (0, (1.0, 1.5)), "byte bound"), ("passes", (0, (4.0, 2.0)), "pass bound"))


def _ratio_line(
    axes: Axes,
    cells: list[dict[str, Any]],
    at: list[float],
    pair: str,
    metric: str,
    left: str,
    arm_style: ArmStyle,
) -> set[str]:
    found = [entry(cell, "ratios", pair, metric) for cell in cells]
    if all(each.value is None for each in found):
        return set()
    _value_line(axes, at, found, 1.0, arm_style)
    return {left}


def _bounds(axes: Axes, cells: list[dict[str, Any]], at: list[float]) -> None:
    for key, line, _ in _BOUNDS:
        known = [
            (x, c["limits"][key]) for x, c in zip(at, cells, strict=True) if key in c["limits"]
        ]
        if known:
            axes.plot(*zip(*known, strict=True), color=style.MUTED.light, linestyle=line)


def _paper(axes: Axes, cells: list[dict[str, Any]], metric: str) -> set[tuple[float, float]]:
    """Shade the ranges that a paper gives for `fixed-low/dblp` under these cells' conditions."""
    ranges = {
        (each["low"], each["high"])
        for cell in cells
        for each in cell["published"].get(metric, [])
        if "low" in each and each["compared"] == "ratio fixed-low/dblp"
    }
    for low, high in ranges:
        axes.axhspan(
            low, high, color=style.STEEL.light, alpha=_PAPER_ALPHA, linewidth=0, zorder=0.3
        )
    return ranges


def _ratio_axis(axes: Axes, cells: list[dict[str, Any]], pairs: list[str], metric: str) -> None:
    found = [entry(cell, "ratios", pair, metric).value for cell in cells for pair in pairs]
    values = [1.0, *(each for each in found if each)]
    values += [bound for cell in cells for bound in cell["limits"].values()]
    values += [
        each["high"]
        for cell in cells
        for each in cell["published"].get(metric, [])
        if "high" in each
    ]
    if max(values) / min(values) < _LOG_FROM:
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    low, high = min(values) / 1.4, max(values) * 1.4
    ticks = [step * 10.0**power for power in range(-2, 4) for step in (1, 2, 5)]
    axes.set_yticks([each for each in ticks if low < each < high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(low, high)


def _numeric_axis(axes: Axes, at: list[float]) -> None:
    if min(at) > 0 and max(at) / min(at) >= _LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(at, [f"{x:g}" for x in at])


def cdf_by_point(
    rounds: pl.DataFrame, summary: dict[str, Any], styles: dict[str, ArmStyle]
) -> Figure | None:
    """Distribution of the latency of burst rounds, one panel per point of the sweep."""
    points = (summary.get("points") or [])[:_MOST_PANELS]
    hit = rounds.filter((pl.col("impairments").list.len() > 0) & pl.col("latency_s").is_not_null())
    if len(points) < 2 or hit.is_empty():
        return None
    unit = formatting.unit_for("s", hit["latency_s"])
    figure, axes_of = _grid(len(points), share=True)
    present: set[str] = set()
    for axes, point in zip(axes_of, points, strict=False):
        here = hit.filter(
            *(
                pl.col(FACTOR_PREFIX + name).eq_missing(pl.lit(value))
                for name, value in point["factors"].items()
            )
        )
        for arm, rows in by_arm(here, styles):
            step(axes, rows["latency_s"].to_numpy() * unit.factor, styles[arm])
            present.add(arm)
        axes.set_title(_values(point), loc="left", fontsize=9)
        axes.set_ylim(0, 102)
    scale_axis(axes_of[0].xaxis, hit["latency_s"] * unit.factor)
    for axes in axes_of[-2:]:  # the lowest of each column, also where a neighbour is lacking
        axes.set_xlabel(f"Round latency ({unit.symbol})")
        axes.tick_params(labelbottom=True)
    for axes in axes_of[::2]:
        axes.set_ylabel("Rounds (%)")
    add_legend(figure, styles, present, [], markers=False)
    return figure


def _values(point: dict[str, Any]) -> str:
    """A point by its values alone, which is short; of one factor with its name."""
    if len(point["factors"]) == 1:
        return point_label(point)
    return ", ".join(str(value) for value in point["factors"].values())


def step(axes: Axes, values: np.ndarray, arm_style: ArmStyle) -> None:
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


def _grid(panels: int, *, share: bool = False) -> tuple[Figure, list[Axes]]:
    """Axes for so many panels, two in a row; those left over are not there."""
    columns = 1 if panels == 1 else 2
    rows = -(-panels // columns)
    width, height = style.SIZE_INCHES
    size = (width, height) if panels == 1 else (width * 1.2, 0.9 + 1.9 * rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=True).flatten()
    for axes in grid[panels:]:
        figure.delaxes(axes)
    return figure, list(grid[:panels])


def _number(value: Any) -> float:
    return float(value)


def _all_numbers(values: list[Any]) -> bool:
    try:
        return all(np.isfinite(float(value)) for value in values)
    except (TypeError, ValueError):
        return False
