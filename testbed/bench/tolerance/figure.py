"""The study's figure: one panel per task, harm against loss, one line per order and filling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.statistics import Estimate
from testbed.bench.tolerance.findings import HARMLESS_POINTS, Group

_MOST_POINTS = 100.0


def draw(
    found: Mapping[Group, Mapping[float, Estimate]], metrics: Mapping[str, str], path: Path
) -> bool:
    """Writes the figure; False when there is nothing to draw.

    Args:
        found: of `findings.harm`.
        metrics: task -> accuracy or perplexity.
        path: with the suffix of a format that matplotlib writes.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from analysis import style

    constant = {group: points for group, points in found.items() if group.when == "always"}
    tasks = list(dict.fromkeys(group.task for group in constant))
    if not tasks:
        return False
    labels = list(dict.fromkeys(group.label for group in constant))
    looks = style.arm_styles(labels)
    with mpl.rc_context(style.RC):
        figure = Figure(figsize=(4.2 * len(tasks), 3.9))
        panels: Any = figure.subplots(1, len(tasks), squeeze=False)[0]
        for axes, task in zip(panels, tasks, strict=True):
            for group, points in constant.items():
                if group.task == task:
                    _line(axes, points, looks[group.label], group)
            unit = "points of accuracy lost" if metrics[task] == "accuracy" else "% of perplexity"
            axes.axhline(HARMLESS_POINTS, color=style.MUTED.light, linewidth=0.8)
            axes.set_yscale("symlog", linthresh=1.0)
            axes.set_ylim(-2, _MOST_POINTS)
            axes.set_yticks([-1, 0, 1, 3, 10, 30, 100])
            axes.set_yticklabels(["-1", "0", "1", "3", "10", "30", "100"])
            axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8])
            axes.set_xticklabels(["0", "20 %", "40 %", "60 %", "80 %"])
            axes.set_xlabel("chunks given up on both legs")
            axes.set_ylabel(unit)
            axes.set_title(task, fontsize=10, loc="left")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        figure.savefig(path, dpi=160)
    return True


def _line(axes: Any, points: Mapping[float, Estimate], look: Any, group: Group) -> None:
    drawn = [(loss, each) for loss, each in points.items() if each.value is not None]
    losses = [loss for loss, _ in drawn]
    values = [_bounded(each.value) for _, each in drawn]
    axes.plot(
        losses,
        values,
        color=look.colour.light,
        marker=look.marker,
        linestyle=look.line,
        label=group.label,
    )
    low = [_bounded(each.low if each.low is not None else each.value) for _, each in drawn]
    high = [_bounded(each.high if each.high is not None else each.value) for _, each in drawn]
    axes.fill_between(losses, low, high, color=look.colour.light, alpha=0.12, linewidth=0)


def _bounded(value: float | None) -> float:
    return min(_MOST_POINTS, value if value is not None else 0.0)
