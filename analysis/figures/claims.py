"""The figure of the page of claims: of each gain that a paper claims, the share that we see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis.figures import style
from analysis.statistics import GAIN_MARGIN

_ROW_INCHES, _FRAME_INCHES = 0.27, 1.1
_MOST, _LEAST = 3.0, -1.0  # of the claimed gain; what lies beyond is drawn at the edge
_COLOURS = {"confirmed": style.GREEN, "contradicted": style.ORANGE, "no effect seen": style.MUTED}


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Our gain over the claimed one, with its interval: 0 is no effect, and 1 as claimed."""

    label: str
    verdict: str
    value: float
    low: float
    high: float


def gains(points: Sequence[Gain]) -> Figure:
    height = _FRAME_INCHES + _ROW_INCHES * len(points)
    figure = Figure(figsize=(style.SIZE_INCHES[0] * 1.5, height), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(1 - GAIN_MARGIN, _MOST, color=style.GRID.light, alpha=0.5, linewidth=0)
    axes.axvline(0, color=style.MUTED.light, linewidth=0.8)
    axes.axvline(1, color=style.INK.light, linewidth=0.8)
    for at, point in enumerate(points):
        colour = _COLOURS.get(point.verdict, style.BLUE).light
        ends = (point.value, point.low, point.high)
        value, low, high = (min(max(end, _LEAST), _MOST) for end in ends)
        axes.plot([low, high], [at, at], color=colour)
        axes.plot([value], [at], color=colour, marker="o")
    axes.set_yticks(range(len(points)), [point.label for point in points])
    axes.set_ylim(len(points) - 0.4, -0.6)
    axes.set_xlim(_LEAST, _MOST)
    figure.supxlabel("our gain over the claimed (0: none, 1: as claimed)", size="medium")
    axes.grid(visible=False, axis="y")
    return figure
