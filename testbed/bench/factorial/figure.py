"""The factorial's figure: accuracy against memory, a line per order; perplexity against rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from analysis.figures import style
from analysis.statistics.intervals import Estimate
from testbed.bench.factorial.design import LEVELS, LOSS, Cell
from testbed.bench.factorial.effects import Group
from testbed.bench.factorial.findings import Findings
from testbed.bench.factorial.rates import BEST, AtRate

_COLOURS = (style.BLUE, style.GOLD, style.GREEN, style.ORANGE)
_MARKERS = "osD^"
_DASHED = (0, (4.0, 2.0))
_MEMORIES = {"none": "none", "gather": "gather", "both": "both legs"}


def draw(found: Findings, path: Path) -> bool:
    """Write the figure, a panel for each task and optimiser; False when there is none."""
    panels = [(_factors, group) for group in found.results.groups]
    panels += [(_rates, group) for group in found.rates]
    if not panels:
        return False
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    with style.settings():
        figure = Figure(figsize=(4.6 * columns, 3.3 * rows + 0.9))
        places: Any = figure.subplots(rows, columns, squeeze=False).ravel()
        for (panel, group), axes in zip(panels, places, strict=False):
            panel(axes, found, group)
            axes.set_title(str(group), fontsize=10, loc="left")
        for unused in places[len(panels) :]:
            unused.remove()
        if found.results.groups:
            handles, names = places[0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside lower center", ncols=3)
        figure.savefig(path, dpi=160)
    return True


def _factors(axes: Any, found: Findings, group: Group) -> None:
    memories = LEVELS["memory"]
    without = found.mean(group, None)
    if without.value is not None:
        axes.axhline(without.value, color=style.INK.light, linewidth=1.0, label="without loss")
    for place, order in enumerate(LEVELS["order"]):
        for filling in LEVELS["filling"]:
            offset = (place - 1.5) * 0.06 + (0.03 if filling == "rescale" else 0.0)
            estimates = [found.mean(group, Cell(order, memory, filling)) for memory in memories]
            _line(
                axes,
                [at + offset for at in range(len(memories))],
                estimates,
                label=f"{order.removesuffix('-magnitude-first')}, {filling}",
                color=_COLOURS[place].light,
                marker=_MARKERS[place],
                linestyle=_DASHED if filling == "rescale" else "solid",
                markerfacecolor="none" if filling == "rescale" else None,
            )
    axes.set_xticks(range(len(memories)), [_MEMORIES[each] for each in memories])
    axes.set_xlabel("error feedback")
    axes.set_ylabel(f"accuracy with {LOSS * 100:g} % given up (%)")


def _rates(axes: Any, found: Findings, group: Group) -> None:
    at: dict[str, AtRate] = {
        rate: each for rate, each in found.rates[group].items() if rate != BEST
    }
    rates = [float(rate) for rate in at]
    looks = {"color": style.INK.light, "marker": "x", "label": "without loss"}
    _line(axes, rates, [each.without for each in at.values()], **looks)
    looks = {"color": style.BLUE.light, "marker": "o", "label": f"last {LOSS * 100:g} % left out"}
    _line(axes, rates, [each.lossy for each in at.values()], **looks)
    axes.set_xscale("log", base=2)
    axes.set_xticks(rates, list(at))
    axes.minorticks_off()
    axes.set_xlabel("learning rate")
    axes.set_ylabel("perplexity")
    axes.legend()


def _line(axes: Any, places: list[float], estimates: list[Estimate], **looks: Any) -> None:
    known = [(x, each) for x, each in zip(places, estimates, strict=True) if each.value is not None]
    if not known:
        return
    ends = [(each.low, each.value, each.high) for _, each in known]
    down = [0.0 if low is None or value is None else value - low for low, value, _ in ends]
    up = [0.0 if high is None or value is None else high - value for _, value, high in ends]
    axes.errorbar(
        [x for x, _ in known],
        [each.value for _, each in known],
        yerr=[down, up],
        capsize=2,
        elinewidth=0.8,
        **looks,
    )
