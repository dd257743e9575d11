"""The registry of the arms' colours, markers and line styles, and matplotlib's settings.

Colours are safe for the common kinds of colour blindness, and never alone: line style and marker
differ too. Each has a lighter twin for dark pages.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from analysis.statistics import Estimate


@dataclass(frozen=True, kw_only=True)
class Colour:
    """A colour on white paper and its twin on a dark page; the name is its CSS variable's."""

    name: str
    light: str
    dark: str


@dataclass(frozen=True, kw_only=True)
class ArmStyle:
    colour: Colour
    marker: str
    line: Literal["solid"] | tuple[float, tuple[float, ...]]


BLUE = Colour(name="blue", light="#0063a3", dark="#66b8f5")
ORANGE = Colour(name="orange", light="#c94f0a", dark="#ff9a62")
GREEN = Colour(name="green", light="#007a5c", dark="#45d0a2")
PURPLE = Colour(name="purple", light="#96408b", dark="#e596d8")
GOLD = Colour(name="gold", light="#8f6f00", dark="#e3c454")
STEEL = Colour(name="steel", light="#5b6472", dark="#aab4c3")

INK = Colour(name="ink", light="#1d2330", dark="#e8ebf1")
MUTED = Colour(name="muted", light="#5f6878", dark="#a3adbd")
GRID = Colour(name="grid", light="#dfe3ea", dark="#343b48")
PAPER = Colour(name="paper", light="#ffffff", dark="#181c24")
BAD = Colour(name="bad", light="#a8231a", dark="#ff9a8f")
LOSS_BAND = Colour(name="loss-band", light="#f6d5d9", dark="#5a2a35")
OTHER_BAND = Colour(name="other-band", light="#dcd9f4", dark="#3b3a66")

_ARM_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GOLD, STEEL)
COLOURS = (*_ARM_COLOURS, INK, MUTED, GRID, PAPER, BAD, LOSS_BAND, OTHER_BAND)

_DASHED, _DOTTED, _DASH_DOT = (0, (5.0, 2.0)), (0, (1.2, 1.6)), (0, (6.0, 2.0, 1.2, 2.0))

ARMS = {
    "dblp": ArmStyle(colour=BLUE, marker="o", line="solid"),
    "fixed-low": ArmStyle(colour=ORANGE, marker="s", line=_DASHED),
    "tcp-cubic": ArmStyle(colour=GREEN, marker="^", line=_DASH_DOT),
    "fixed-high": ArmStyle(colour=PURPLE, marker="D", line=_DOTTED),
    "dblp-stream": ArmStyle(colour=GOLD, marker="v", line="solid"),
    "none": ArmStyle(colour=STEEL, marker="x", line=_DASHED),
}
_OTHERS = (
    ArmStyle(colour=GOLD, marker="X", line=_DASHED),
    ArmStyle(colour=PURPLE, marker="*", line=_DASH_DOT),
    ArmStyle(colour=GREEN, marker="<", line=_DOTTED),
    ArmStyle(colour=ORANGE, marker=">", line=_DOTTED),
    ArmStyle(colour=BLUE, marker="h", line=_DASH_DOT),
    ArmStyle(colour=INK, marker="d", line=_DOTTED),
    ArmStyle(colour=ORANGE, marker="p", line="solid"),
    ArmStyle(colour=GREEN, marker="2", line="solid"),
    ArmStyle(colour=STEEL, marker="1", line=_DOTTED),  # late: `none` is grey, too
    ArmStyle(colour=STEEL, marker="P", line=_DASH_DOT),
)

SIZE_INCHES = (4.5, 3.2)  # shown about as large on a phone, so 9 points stay readable
_SETTINGS: Any = {
    "figure.figsize": SIZE_INCHES,
    "figure.facecolor": PAPER.light,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": PAPER.light,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same everywhere
    "font.size": 10.0,
    "text.parse_math": False,  # names may hold dollar signs
    "text.color": INK.light,
    "axes.edgecolor": MUTED.light,
    "axes.labelcolor": INK.light,
    "axes.facecolor": PAPER.light,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "grid.color": GRID.light,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "xtick.labelcolor": INK.light,
    "ytick.labelcolor": INK.light,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "svg.fonttype": "none",  # text stays text: selectable, and searchable in the page
    "svg.hashsalt": "bounded-loss-testbed",
}


@contextmanager
def settings() -> Iterator[None]:
    """Draw in the body with our settings over matplotlib's defaults, whatever the user's are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def arm_styles(arms: Sequence[str]) -> dict[str, ArmStyle]:
    others = itertools.cycle(_OTHERS)
    return {arm: ARMS.get(arm) or next(others) for arm in arms}


LOG_FROM = 8.0  # greatest over smallest value from which an axis is logarithmic
MOST_PANELS = 6
_LEGEND_INCHES = 1.0  # for which figures have room
_MARGIN = 0.07  # of an axis, at both of its ends
_FEWEST_ARMS_WITHOUT_BANDS = 5
_MOST_MIXTURES = 3  # of impairments, each with an own patch in the legend
_MARKED_POINTS = 30  # about that many markers per line, however many points it has


def new_panels(count: int, *, share_y: bool = False) -> tuple[Figure, list[Axes]]:
    width, height = SIZE_INCHES
    size = (width, height + 1.3 * (count - 1))
    figure = Figure(figsize=size, layout="constrained")  # never known to pyplot
    axes = figure.subplots(count, 1, sharex=True, sharey=share_y, squeeze=False)
    return figure, list(axes.flatten())


def new_grid(panels: int) -> tuple[Figure, list[Axes]]:
    columns = 1 if panels == 1 else 2
    rows = -(-panels // columns)
    width, height = SIZE_INCHES
    size = (width, height) if panels == 1 else (width * 1.2, 0.9 + 1.9 * rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for axes in grid[panels:]:
        figure.delaxes(axes)
    return figure, list(grid[:panels])


TICK_WIDTH, TITLE_WIDTH, _LEGEND_WIDTH = 24, 44, 46  # of a line of a label, in characters


class _BetweenParts(textwrap.TextWrapper):
    """Breaks a label between its parts, as behind `=` in `dblp@congestion_control=bbr`."""

    wordsep_re = re.compile(r"(\s+)|(?<=[-/:=,_])")


def in_lines(label: str, width: int = TICK_WIDTH) -> str:
    """A label in lines of at most so many characters; in a long one, what is set has its own."""
    if len(label) <= width:
        return label
    wrapper = _BetweenParts(width)
    return "\n".join(line for part in re.split("(?=@)", label) for line in wrapper.wrap(part))


def by_arm(frame: pl.DataFrame, styles: dict[str, ArmStyle]) -> list[tuple[str, pl.DataFrame]]:
    present = set(frame["arm"])
    return [(arm, frame.filter(pl.col("arm") == arm)) for arm in styles if arm in present]


def too_many_for_bands(arms: Collection[str]) -> bool:
    """Tell experiments with so many arms that bands around their lines hide one another."""
    return len(arms) >= _FEWEST_ARMS_WITHOUT_BANDS


def draw_lines_by_round(
    axes: Axes,
    frame: pl.DataFrame,
    column: str,
    styles: dict[str, ArmStyle],
    *,
    factor: float = 1.0,
    over: str = "round",
) -> None:
    """A line per arm: the mean over its runs in each round, in a band from lowest to highest."""
    value = pl.col(column) * factor
    for arm, rows in by_arm(frame, styles):
        x = [] if over == "round" else [pl.col(over).mean()]
        line = (
            rows.group_by("round")
            .agg(*x, mean=value.mean(), low=value.min(), high=value.max())
            .sort("round")
        )
        style_of, colour = styles[arm], styles[arm].colour.light
        if not too_many_for_bands(styles):
            band: Any = {"color": colour, "alpha": 0.18, "linewidth": 0}
            axes.fill_between(line[over], line["low"], line["high"], **band)
        axes.plot(
            line[over],
            line["mean"],
            color=colour,
            linestyle=style_of.line,
            marker=style_of.marker,
            markevery=max(1, line.height // _MARKED_POINTS),
        )


def shade_impairments(axes: Axes, rounds: pl.DataFrame, kinds: dict[str, str]) -> list[Patch]:
    """Shade the rounds that impairments hit; the patches are for the legend."""
    kind = pl.col("impairments").replace_strict(kinds, default="other", return_dtype=pl.String)
    hit = (
        rounds.select("round", "impairments")
        .explode("impairments")
        .drop_nulls()
        .group_by("round")
        .agg(kind.unique().sort())
    )
    patches = []
    mixtures = {tuple(kinds): f"hit by {' + '.join(kinds)}" for kinds in hit["impairments"]}
    if len(mixtures) > _MOST_MIXTURES:
        mixtures = {("several",): "hit in some runs"}
        hit = hit.with_columns(impairments=pl.lit(["several"]))
    for together in sorted(mixtures, key=lambda names: (names != ("loss",), names)):
        colour = (LOSS_BAND if "loss" in together else OTHER_BAND).light
        options: dict[str, Any] = {"facecolor": colour, "linewidth": 0}
        if "loss" in together and len(together) > 1:
            options |= {"hatch": "//", "edgecolor": MUTED.light}
        struck = hit.filter(pl.col("impairments") == pl.lit(list(together)))["round"].sort()
        begins = struck.filter(struck.diff().fill_null(2) != 1)
        ends = struck.filter(struck.diff(-1).fill_null(-2) != -1)
        for begin, end in zip(begins, ends, strict=True):
            axes.axvspan(begin - 0.5, end + 0.5, zorder=0.4, **options)
        patches.append(Patch(**options, label=mixtures[together]))
    return patches


def scale_axis(axis: Any, values: pl.Series) -> None:
    """Logarithmic where values span much, with ticks that read as plain numbers."""
    positive = values.filter(values > 0)
    if positive.is_empty():
        return
    is_y, low, high = axis.axis_name == "y", float(positive.min()), float(positive.max())  # type: ignore[arg-type]
    if high / low < LOG_FROM:
        (axis.axes.set_ylim if is_y else axis.axes.set_xlim)(0, None)
        return
    (axis.axes.set_yscale if is_y else axis.axes.set_xscale)("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 300 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def add_legend(
    figure: Figure,
    styles: dict[str, ArmStyle],
    present: set[str],
    further: Sequence[Patch | Line2D],
    *,
    markers: bool = True,
) -> None:
    handles: list[Any] = [
        Line2D(
            [],
            [],
            color=style.colour.light,
            linestyle=style.line,
            marker=style.marker if markers else "",
            label=in_lines(arm, _LEGEND_WIDTH),
        )
        for arm, style in styles.items()
        if arm in present
    ]
    handles += further
    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in (3, 2, 1):
        # matplotlib fills columns first; people read rows first.
        in_rows = [handle for column in range(columns) for handle in handles[column::columns]]
        legend = figure.legend(
            handles=in_rows,
            loc="outside upper left",
            ncols=columns,
            handlelength=2.4,
            columnspacing=1.2,
        )
        extent = legend.get_window_extent(renderer)
        if columns == 1 or extent.width < 0.97 * figure.bbox.width:
            more = extent.height / figure.dpi - _LEGEND_INCHES
            figure.set_figheight(figure.get_figheight() + max(0.0, more))
            return
        legend.remove()


def render(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


def line_with_intervals(
    axes: Axes,
    at: Sequence[float],
    estimates: Sequence[Estimate],
    arm_style: ArmStyle,
    factor: float = 1.0,
    *,
    joined: bool = True,
) -> bool:
    colour, xs, ys = arm_style.colour.light, [], []
    for x, estimate in zip(at, estimates, strict=True):
        if estimate.value is not None:
            xs.append(x)
            ys.append(estimate.value * factor)
        if estimate.low is not None and estimate.high is not None:
            ends = [estimate.low * factor, estimate.high * factor]
            axes.plot([x, x], ends, color=colour, linewidth=1.2)
    if xs:
        line = arm_style.line if joined else "none"
        axes.plot(xs, ys, color=colour, linestyle=line, marker=arm_style.marker)
    return bool(xs)


def all_numbers(values: Sequence[Any]) -> bool:
    try:
        return all(math.isfinite(float(value)) for value in values)
    except (TypeError, ValueError):
        return False


def factor_axis(axes: Axes, at: Sequence[float]) -> None:
    if min(at) > 0 and max(at) / min(at) >= LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    positive = [x for x in at if x > 0]
    if min(at) == 0 and positive and max(positive) / min(positive) >= LOG_FROM:
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
        axes.xaxis.set_minor_locator(NullLocator())
        along = axes.xaxis.get_transform()
        first, last = along.transform([0.0, max(positive)])
        beyond = _MARGIN * (last - first)  # its own margin would be that of plain numbers
        axes.set_xlim(*along.inverted().transform([first - beyond, last + beyond]))
    axes.set_xticks(at, [f"{x:g}" for x in at])
