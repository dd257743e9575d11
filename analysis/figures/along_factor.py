"""Figures along a factor of a sweep: ratios beside their limits, and what was learnt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import formatting
from analysis.data.metrics import TASK_METRICS, describe
from analysis.figures import style
from analysis.figures.style import ArmStyle
from analysis.summary.document import CONTRASTED
from analysis.summary.lookup import bounded_metric, entry, factors_text, pairs, points, with_values

_LONG_LABEL = 8
_PAPER_ALPHA = 0.22
_BOUNDS = (("bytes", (0, (1.0, 1.5)), "byte bound"), ("passes", (0, (4.0, 2.0)), "pass limit"))


def ratios_along_factor(summary: dict[str, Any], styles: dict[str, ArmStyle]) -> Figure | None:
    """Ratios to the reference arm along the factor with most values, beside the two limits."""
    parts = points(summary)
    if len(parts) < 2:
        return None
    values = {
        name: list(dict.fromkeys(point["factors"][name] for point in parts))
        for name in parts[0]["factors"]
    }
    along = max(values, key=lambda name: (len(values[name]), style.all_numbers(values[name])))
    compared = [(left, f"{left}/{right}") for left, right in pairs(summary)]
    if len({right for _, right in pairs(summary)}) > 1:
        return None  # an axis has one reference
    names = [pair for _, pair in compared]
    metric = next(iter(with_values(parts, "ratios", names, CONTRASTED)), None)
    if metric is None or len(values[along]) < 2:
        return None
    panels: dict[str, list[dict[str, Any]]] = {}
    for point in parts:
        rest = {name: value for name, value in point["factors"].items() if name != along}
        panels.setdefault(factors_text(rest), []).append(point)
    shown = dict(list(panels.items())[: style.MOST_PANELS])
    figure, axes_of = style.new_grid(len(shown))
    numeric = style.all_numbers(values[along])
    bounds = _BOUNDS if metric == bounded_metric(summary) else ()
    present: set[str] = set()
    published: set[tuple[float, float]] = set()
    for axes, (title, cells) in zip(axes_of, shown.items(), strict=False):
        at = [float(p["factors"][along]) if numeric else float(i) for i, p in enumerate(cells)]
        for number, (left, pair) in enumerate(compared):
            ratios = [entry(cell, "ratios", pair, metric) for cell in cells]
            # At a name the arms stand side by side, so that none hides another.
            aside = 0.0 if numeric else 0.6 * ((number + 0.5) / len(compared) - 0.5)
            places = [x + aside for x in at]
            if style.line_with_intervals(axes, places, ratios, styles[left], joined=numeric):
                present.add(left)
        _bounds(axes, cells, at, bounds, joined=numeric)
        published |= _paper(axes, cells, metric)
        axes.axhline(1, color=style.MUTED.light, linewidth=0.9, zorder=0.5)
        axes.set_title(style.in_lines(title, style.TITLE_WIDTH), loc="left", fontsize=9.5)
        if numeric:
            style.factor_axis(axes, at)
        else:
            labels = [style.in_lines(str(p["factors"][along])) for p in cells]
            long = max(map(len, labels)) > _LONG_LABEL
            slant: dict[str, Any] = {"rotation": 25, "ha": "right"} if long else {}
            axes.set_xticks(at, labels, fontsize=8, **slant)
            axes.set_xlim(-0.5, len(at) - 0.5)
        axes.set_xlabel(along.split(".")[-1])
    in_panels = [cell for cells in shown.values() for cell in cells]
    drawn = [entry(cell, "ratios", name, metric) for cell in in_panels for name in names]
    style.scale_axis(axes_of[0].yaxis, pl.Series([1.0, *(ratio.value for ratio in drawn)]))
    reference = style.in_lines(compared[0][1].removeprefix(f"{compared[0][0]}/"))
    axes_of[0].set_ylabel(f"{describe(metric).label}\nover {reference} (x)")
    further: list[Patch | Line2D] = [
        Line2D([], [], color=style.MUTED.light, linestyle=line, label=text)
        for key, line, text in bounds
        if any(key in p["limits"] for p in in_panels)
    ]
    if published:
        further.append(Patch(color=style.STEEL.light, alpha=_PAPER_ALPHA, label="paper's range"))
    style.add_legend(figure, styles, present, further)
    return figure


def _bounds(
    axes: Axes,
    cells: list[dict[str, Any]],
    at: list[float],
    bounds: Sequence[tuple[str, Any, str]],
    *,
    joined: bool,
) -> None:
    """Lines through the limits; a short one at each place where these are not `joined`."""
    for key, line, _ in bounds:
        ends = [(x, c["limits"][key]) for x, c in zip(at, cells, strict=True) if key in c["limits"]]
        lines = [ends] if joined else [[(x - 0.3, y), (x + 0.3, y)] for x, y in ends]
        for points_of_line in filter(None, lines):
            axes.plot(*zip(*points_of_line, strict=True), color=style.MUTED.light, linestyle=line)


def _paper(axes: Axes, cells: list[dict[str, Any]], metric: str) -> set[tuple[float, float]]:
    """Shade the ranges that a paper gives for `fixed-low/dblp` under these cells' conditions."""
    ranges = {
        (value["low"], value["high"])
        for cell in cells
        for value in cell["published"].get(metric, [])
        if {"low", "high"} <= value.keys() and value["compared"] == "ratio fixed-low/dblp"
    }
    options: Any = {"alpha": _PAPER_ALPHA, "linewidth": 0, "zorder": 0.3}
    for low, high in ranges:
        axes.axhspan(low, high, color=style.STEEL.light, **options)
    return ranges


_FEWEST_ALONG = 3  # points of a sweep that are worth a line


def learning_along_factor(summary: dict[str, Any], styles: dict[str, ArmStyle]) -> Figure | None:
    """Every arm's final test metric and mean latency, along a factor that is a number."""
    parts = points(summary)
    names = list(parts[0]["factors"]) if parts else []
    metric = next(iter(with_values(parts, "arms", summary["arms"], TASK_METRICS)), None)
    if metric is None or len(names) != 1 or len(parts) < _FEWEST_ALONG:
        return None
    levels = [point["factors"][names[0]] for point in parts]
    if not style.all_numbers(levels):
        return None
    at = [float(level) for level in levels]
    figure, axes_of = style.new_panels(2)
    present: set[str] = set()
    for axes, name in zip(axes_of, (metric, "round_latency_s.mean"), strict=True):
        cells = {arm: [entry(p, "arms", arm, name) for p in parts] for arm in summary["arms"]}
        values = [estimate.value for estimates in cells.values() for estimate in estimates]
        label, unit = formatting.metric_unit(name, values)
        for arm, estimates in cells.items():
            if style.line_with_intervals(axes, at, estimates, styles[arm], unit.factor):
                present.add(arm)
        axes.set_ylabel(label)
        if name != metric:  # of which small differences count
            axes.set_ylim(bottom=0)
    style.factor_axis(axes_of[-1], at)
    axes_of[-1].set_xlabel(names[0].split(".")[-1])
    style.add_legend(figure, styles, present, [])
    return figure
