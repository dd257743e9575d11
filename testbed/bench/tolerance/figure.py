"""The study's figure: harm against loss, a panel per task; then loss early against loss later."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.statistics.intervals import Estimate
from testbed.bench.tolerance.findings import HARMLESS_POINTS, Group

_MOST_POINTS = 100.0
_WHEN = {"early": "first\nthird", "late": "the\nrest", "always": "all\nrounds"}


def draw(
    found: Mapping[Group, Mapping[float, Estimate]], metrics: Mapping[str, str], path: Path
) -> bool:
    """Writes the figure; False when there is nothing to draw.

    Args:
        found: of `findings.harm`.
        metrics: task -> accuracy or perplexity.
        path: with the suffix of a format that matplotlib writes.
    """
    constant = {group: points for group, points in found.items() if group.when == "always"}
    tasks = list(dict.fromkeys(group.task for group in constant))
    if not tasks:
        return False
    looks = _looks(list(dict.fromkeys(group.label for group in constant)))
    with mpl.rc_context(style.RC):
        phased = list(dict.fromkeys(group.task for group in found if group.when != "always"))
        count = len(tasks) + len(phased)
        columns = min(2, count)
        rows = -(-count // columns)
        figure = Figure(figsize=(4.3 * columns, 3.4 * rows + 0.8))
        panels: Any = figure.subplots(rows, columns, squeeze=False).ravel()
        for unused in panels[count:]:
            unused.remove()
        for axes, task in zip(panels, tasks, strict=False):
            for group, points in constant.items():
                if group.task == task:
                    _line(axes, points, looks[group.label], group)
            _scale(axes, metrics[task], _lowest(found, task))
            axes.set_xlim(-0.03, 0.83)
            axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8], ["0", "20 %", "40 %", "60 %", "80 %"])
            axes.set_xlabel("chunks given up on both legs, always")
            axes.set_title(task, fontsize=10, loc="left")
        for axes, task in zip(panels[len(tasks) : count], phased, strict=True):
            _early_and_late(axes, {g: p for g, p in found.items() if g.task == task}, looks)
            _scale(axes, metrics[task], _lowest(found, task))
            axes.set_title(f"{task}: when does loss hurt?", fontsize=10, loc="left")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        figure.savefig(path, dpi=160)
    return True


def _looks(labels: Sequence[str]) -> dict[str, Any]:
    """Whole lines for what receivers stopped early, dashed ones for what the network lost."""
    whole = (style.BLUE, style.GREEN, style.PURPLE, style.GOLD, style.ORANGE, style.INK)
    dashed = (style.BLUE, style.INK, style.STEEL, style.ORANGE)
    found = {}
    counts = {True: 0, False: 0}
    for label in labels:
        lost = label.startswith("network")
        colours, markers = (dashed, "vXx>") if lost else (whole, "os^DPh")
        place = counts[lost] % len(colours)
        counts[lost] += 1
        found[label] = style.ArmStyle(
            colour=colours[place], marker=markers[place], line=(0, (5.0, 2.0)) if lost else "solid"
        )
    return found


def _lowest(found: Mapping[Group, Mapping[float, Estimate]], task: str) -> float:
    every = [each for g, points in found.items() if g.task == task for each in points.values()]
    return min((each.value for each in every if each.value is not None), default=0.0)


def _scale(axes: Any, metric: str, lowest: float) -> None:
    axes.axhline(HARMLESS_POINTS, color=style.MUTED.light, linewidth=0.8)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(-3 if lowest > -2 else -30, _MOST_POINTS)  # below 0: better than without loss
    every = (-30, -10, -3, -1, 0, 1, 3, 10, 30, 100)
    ticks = [tick for tick in every if tick > min(lowest, -1) - 10]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylabel("points of accuracy lost" if metric == "accuracy" else "% of perplexity")


def _early_and_late(
    axes: Any, found: Mapping[Group, Mapping[float, Estimate]], looks: Mapping[str, Any]
) -> None:
    """Loss in the first third of the rounds, in the rest, and in all of them, side by side."""
    phased = {group.label for group in found if group.when != "always"}
    compared = {group: points for group, points in found.items() if group.label in phased}
    losses = sorted(
        {loss for g, points in compared.items() if g.when != "always" for loss in points}
    )
    places = {(loss, when): i for i, (loss, when) in enumerate(itertools.product(losses, _WHEN))}
    order = sorted(phased)
    for group, points in compared.items():
        look = looks[group.label]
        offset = 0.16 * (order.index(group.label) - (len(order) - 1) / 2)
        for loss in losses:
            each = points.get(loss)
            if each is None or each.value is None:
                continue
            value = _bounded(each.value)
            low, high = (value if end is None else _bounded(end) for end in (each.low, each.high))
            axes.errorbar(
                places[loss, group.when] + offset,
                value,
                yerr=[[max(0.0, value - low)], [max(0.0, high - value)]],
                color=look.colour.light,
                marker=look.marker,
                linestyle="none",
                capsize=2,
            )
    labels = [f"{_WHEN[when]}\n{loss * 100:g} %" for loss, when in places]
    axes.set_xticks(list(places.values()), labels, fontsize=8)


def _line(axes: Any, points: Mapping[float, Estimate], look: Any, group: Group) -> None:
    drawn = [(loss, each) for loss, each in points.items() if each.value is not None]
    losses = [loss for loss, _ in drawn]
    values = [_bounded(each.value) for _, each in drawn]
    look_of: Any = {"color": look.colour.light, "marker": look.marker, "linestyle": look.line}
    axes.plot(losses, values, label=group.label, **look_of)
    low = [_bounded(each.low if each.low is not None else each.value) for _, each in drawn]
    high = [_bounded(each.high if each.high is not None else each.value) for _, each in drawn]
    axes.fill_between(losses, low, high, color=look.colour.light, alpha=0.12, linewidth=0)


def _bounded(value: float | None) -> float:
    return min(_MOST_POINTS, value if value is not None else 0.0)
