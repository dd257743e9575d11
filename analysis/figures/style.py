"""The registry of the arms' colours, markers and line styles, and matplotlib's settings.

Colours are told apart with the common kinds of colour blindness, and never alone: line style and
marker differ too. Each has a lighter twin for dark pages, which `inline_svg` puts in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl


@dataclass(frozen=True, kw_only=True)
class Colour:
    """A colour on white paper and its twin on a dark page; the name is its CSS variable's."""

    name: str
    light: str
    dark: str


@dataclass(frozen=True, kw_only=True)
class ArmStyle:
    """The colour, marker and line of an arm, the same in all figures."""

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
LOSS_BAND = Colour(name="loss-band", light="#f6d5d9", dark="#5a2a35")
OTHER_BAND = Colour(name="other-band", light="#dcd9f4", dark="#3b3a66")

_ARM_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GOLD, STEEL)
COLOURS = (*_ARM_COLOURS, INK, MUTED, GRID, PAPER, LOSS_BAND, OTHER_BAND)

_DASHED, _DOTTED, _DASH_DOT = (0, (5.0, 2.0)), (0, (1.2, 1.6)), (0, (6.0, 2.0, 1.2, 2.0))

ARMS = {
    "dblp": ArmStyle(colour=BLUE, marker="o", line="solid"),
    "fixed-low": ArmStyle(colour=ORANGE, marker="s", line=_DASHED),
    "tcp-cubic": ArmStyle(colour=GREEN, marker="^", line=_DASH_DOT),
    "fixed-high": ArmStyle(colour=PURPLE, marker="D", line=_DOTTED),
    "dblp-stream": ArmStyle(colour=GOLD, marker="v", line="solid"),
    "dblp-largest": ArmStyle(colour=INK, marker="P", line=_DASH_DOT),
    "none": ArmStyle(colour=STEEL, marker="x", line=_DASHED),
}
_SPARE = (
    ArmStyle(colour=STEEL, marker="P", line=_DASH_DOT),
    ArmStyle(colour=GOLD, marker="X", line=_DASHED),
    ArmStyle(colour=PURPLE, marker="*", line=_DASH_DOT),
    ArmStyle(colour=GREEN, marker="<", line=_DOTTED),
    ArmStyle(colour=ORANGE, marker=">", line=_DOTTED),
    ArmStyle(colour=BLUE, marker="h", line=_DASH_DOT),
    ArmStyle(colour=INK, marker="d", line=_DOTTED),
    ArmStyle(colour=ORANGE, marker="p", line="solid"),
    ArmStyle(colour=STEEL, marker="1", line=_DOTTED),
    ArmStyle(colour=GREEN, marker="2", line="solid"),
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
    """A style per arm: the registry's, and for names that it lacks a spare one by their order."""
    unknown = [arm for arm in arms if arm not in ARMS]
    spare = {arm: _SPARE[index % len(_SPARE)] for index, arm in enumerate(unknown)}
    return {arm: ARMS.get(arm) or spare[arm] for arm in arms}
