"""Two results of one experiment side by side: the ratio of each metric, for each point and arm."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.comparison import Compared
from analysis.data.metrics import describe
from analysis.tables import cells
from analysis.tables.rendering import Cell, Table, row

SHOWN = (
    "round_latency_s.p50",
    "round_latency_s.burst_mean",
    "round_latency_s.p99",
    "bytes_sent",
    "passes_per_transfer",
    "realised_loss.gather",
)


def compared_table(title: str, found: Sequence[Compared]) -> Table:
    """A row for each point and arm, a column for each metric that one of them has."""
    ratios = {(_place(each), each.metric): each.ratio for each in found}
    had = {metric for _, metric in ratios}
    shown = [metric for metric in SHOWN if metric in had]

    def cell(place: str, metric: str) -> Cell:
        ratio = ratios.get((place, metric))
        if ratio is None or ratio.value is None:
            return cells.missing()
        return cells.measured(ratio, with_n=False)

    points = list(dict.fromkeys(map(_point, found)))
    by_point = sorted(found, key=lambda each: points.index(_point(each)))
    places = dict.fromkeys(map(_place, by_point))
    return Table(
        title=title,
        columns=["Ratio", *(describe(metric).label for metric in shown)],
        rows=[row(place, *(cell(place, metric) for metric in shown)) for place in places],
    )


def _point(each: Compared) -> str:
    return ", ".join(str(level) for level in each.factors.values())


def _place(each: Compared) -> str:
    return ": ".join(filter(None, (_point(each), each.arm)))
