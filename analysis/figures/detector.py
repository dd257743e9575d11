"""The figure of replayed detectors: the share of critical rounds against eta and cadence."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.figures import parts
from analysis.figures.style import MUTED, ArmStyle
from analysis.summary.detector_sweep import CADENCES, ETAS, Sweep, own_settings

_MOST_POINTS = 3  # of an experiment's sweep: each takes a row


def critical_share(sweep: Sweep, styles: dict[str, ArmStyle]) -> Figure | None:
    """A line per arm: left against eta, right against the cadence; a row per point."""
    points = list(dict.fromkeys(sweep.rows["point"]))
    own = own_settings(sweep.rows)
    if len(own) != 1 or len(points) > _MOST_POINTS:
        return None
    ((own_eta, own_cadence),) = own
    etas, cadences = sorted({*ETAS, own_eta}), sorted({*CADENCES, own_cadence})
    figure, grid = parts.new_grid(2 * len(points))
    for place, point in enumerate(points):
        left, right = grid[2 * place], grid[2 * place + 1]
        for arm, _ in parts.by_arm(sweep.rows.filter(point=point), styles):
            by_eta = [sweep.share(point, arm, eta, own_cadence) for eta in etas]
            by_cadence = [sweep.share(point, arm, own_eta, each) for each in cadences]
            for axes, at, found in ((left, etas, by_eta), (right, cadences, by_cadence)):
                # The intervals of several arms would hide one another; the table has them.
                means = [each.value * 100 for each in found if each.value is not None]
                look = styles[arm]
                axes.plot(
                    at, means, color=look.colour.light, linestyle=look.line, marker=look.marker
                )
        left.set_title(point, loc="left", fontsize=10)
        left.axvline(own_eta, color=MUTED.light, linewidth=1.0, zorder=1.5)
        right.axvline(own_cadence, color=MUTED.light, linewidth=1.0, zorder=1.5)
        left.set_ylabel("Critical rounds (%)")
        left.set_ylim(0, 102)
        parts.factor_axis(right, [float(each) for each in cadences])
    grid[-2].set_xlabel("eta")
    grid[-1].set_xlabel("Rounds between two looks")
    parts.add_legend(figure, styles, set(sweep.rows["arm"]), [])
    return figure
