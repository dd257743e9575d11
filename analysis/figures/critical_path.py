"""The figure of the critical path: one stacked bar per arm, of what its rounds' time went into."""

from __future__ import annotations

from typing import Any

import polars as pl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.data.critical_path import PARTS
from analysis.data.evidence import FACTOR_PREFIX
from analysis.figures import parts, style
from analysis.figures.style import Colour
from analysis.summary.lookup import factors_text
from analysis.words import formatting

_BROADCAST = "//"  # the hatch of what the broadcast's bars have in common with the gather's
_LOOKS: dict[str, tuple[str, Colour]] = {
    "compute": ("compute", style.BLUE),
    "overrun": ("beyond its pace", style.PURPLE),
    "transfer": ("transfer", style.GREEN),
    "repair": ("repair", style.ORANGE),
    "delay": ("delay", style.GOLD),
    "mean": ("mean, update", style.STEEL),
    "update": ("mean, update", style.STEEL),
    "barrier": ("barrier", style.GRID),
}


def stacked(path: pl.DataFrame, arms: list[str]) -> Figure | None:
    """A bar per arm, and a panel per point of a sweep (at most six); None without any round."""
    if path.is_empty():
        return None
    factors = [name for name in path.columns if name.startswith(FACTOR_PREFIX)]
    points = path.select(factors).unique(maintain_order=True).to_dicts() if factors else [{}]
    points = points[: parts.MOST_PANELS]
    unit = formatting.unit_for("s", [float(path["iteration_s"].mean())])  # type: ignore[arg-type]
    figure, grid = parts.new_grid(len(points))
    shown = [arm for arm in arms if arm in set(path["arm"])]
    for axes, point in zip(grid, points, strict=True):
        here = path.filter(
            *(pl.col(name).eq_missing(pl.lit(value)) for name, value in point.items())
        )
        _bars(axes, here, shown, unit.factor)
        words = {name.removeprefix(FACTOR_PREFIX): value for name, value in point.items()}
        axes.set_title(factors_text(words), fontsize=9)
        axes.set_xlabel(f"Mean of a round ({unit.symbol})")
    handles = {
        label: Patch(facecolor=colour.light, label=label) for label, colour in _LOOKS.values()
    }
    hatched = Patch(facecolor="none", edgecolor=style.MUTED.light, hatch=_BROADCAST)
    hatched.set_label("of the broadcast")
    parts.add_legend(figure, {}, set(), [*handles.values(), hatched])
    return figure


def _bars(axes: Any, path: pl.DataFrame, arms: list[str], factor: float) -> None:
    for place, arm in enumerate(arms):
        rows = path.filter(pl.col("arm") == arm)
        if rows.is_empty():
            continue
        left = 0.0
        for name in PARTS:
            of_broadcast = name.startswith("broadcast_")
            kind = name.removesuffix("_s").removeprefix("gather_").removeprefix("broadcast_")
            width = max(0.0, float(rows[name].mean()) * factor)  # type: ignore[arg-type]
            axes.barh(
                place,
                width,
                left=left,
                height=0.66,
                facecolor=_LOOKS[kind][1].light,
                edgecolor=style.PAPER.light,
                linewidth=0.3,
                hatch=_BROADCAST if of_broadcast else None,
            )
            left += width
    axes.set_yticks(range(len(arms)), [arm.replace("@", "\n@") for arm in arms], fontsize=7.5)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
