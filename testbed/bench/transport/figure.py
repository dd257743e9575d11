"""The benchmark's figure: completion over the byte bound against loss, per repair and peer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.figures import style

_TOLERANCE, _RATE_BPS, _PAYLOAD_BYTES = 0.008, 100_000_000, 1_000_000


def draw(records: Iterable[Mapping[str, Any]], path: Path) -> bool:
    """Write the figure; return False when no case of it was measured."""
    lines = _lines(records)
    if not lines:
        return False
    looks = style.arm_styles(list(lines))
    with style.settings():
        figure = Figure(figsize=(5.4, 3.6))
        axes = figure.add_subplot()
        for label, points in lines.items():
            look = looks[label]
            common: Any = {"color": look.colour.light, "marker": look.marker}
            axes.plot(
                [_place(loss) for loss, _, done in points if done],
                [ratio for _, ratio, done in points if done],
                linestyle=look.line,
                label=label,
                **common,
            )
            for loss, ratio, done in points:
                if not done:  # drawn at the time that it was given, a lower limit
                    x, arrow = _place(loss), {"arrowstyle": "->", "color": look.colour.light}
                    axes.annotate("", (x, ratio * 1.35), (x, ratio), arrowprops=arrow)
                    axes.plot(x, ratio, markerfacecolor="none", **common)
        losses = sorted({loss for points in lines.values() for loss, _, _ in points})
        axes.xaxis.set_major_locator(FixedLocator([_place(loss) for loss in losses]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([f"{loss * 100:g} %" for loss in losses])
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100, 200]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        worst = max(ratio for points in lines.values() for _, ratio, _ in points)
        axes.set_ylim(0.9, 8 * worst)  # the legend lies above the lines
        axes.axhline(1.0, color=style.MUTED.light, linewidth=0.8)
        axes.set_xlabel("loss of data packets")
        axes.set_ylabel("completion / byte bound")
        axes.set_title("1 MB at 100 Mbit/s; arrows: not done in time", fontsize=10, loc="left")
        axes.legend(loc="upper left", ncols=2)
        figure.savefig(path, dpi=160)
    return True


def _place(loss: float) -> float:
    """Where a loss is on the axis: the square root spreads the losses."""
    return loss**0.5


def _lines(records: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float, bool]]]:
    """Name -> (loss, ratio, whether it finished) in ascending loss, for 100 Mbit/s, no delay."""
    lines: dict[str, list[tuple[float, float, bool]]] = {}
    for record in records:
        ours = record["peer"] == "ours"
        plain = record["added_rtt_s"] == 0 and record["workers"] == 1
        plain = plain and record["rate_bps"] == _RATE_BPS
        plain = plain and record["payload_bytes"] == _PAYLOAD_BYTES
        if not plain or (ours and record["tolerance"] != _TOLERANCE):
            continue
        label = f"ours, {record['repair']}" if ours else record["peer"]
        done = record["status"] == "ok"
        ratio = record["ratio_to_bound"] if done else record["limit_s"] / record["byte_bound_s"]
        lines.setdefault(label, []).append((record["loss"], ratio, done))
    return {label: sorted(points) for label, points in lines.items() if len(points) > 1}
