"""The table of replayed detectors: what they missed and invented, reading gradients after loss."""

from __future__ import annotations

from typing import Any

from analysis.data.replay_metrics import LOSSLESS, PREFIX, RELIABLE
from analysis.statistics.intervals import Estimate
from analysis.summary.detector_sweep import Sweep
from analysis.summary.lookup import entry, factors_text, points
from analysis.tables import cells
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting
from analysis.words.formatting import PERCENT

_NOTES = (
    "Missed: rounds that were not critical in the run, but would have been by these norms. "
    "Invented: critical in the run, but not by these norms. Shares of all rounds.",
    "Kappa (Cohen) is the agreement beyond chance, all seeds together: 1 is full, 0 is what two "
    "detectors agree in that know nothing of each other. The rounds before the first comparison "
    "count as agreement: all runs start critical.",
    "The norms of a reliable run are those of another training with the same seed. What differs is "
    "due to the norms that loss changed, and to the weights that it changed.",
)


def detector_table(summary: dict[str, Any], sweep: Sweep) -> Table:
    """A row per point and arm, at the runs' own setting; the records hold every setting."""
    rows = []
    for cell in points(summary) or [summary]:
        point = factors_text(cell.get("factors", {}))
        for arm in cell["arms"]:
            for source in LOSSLESS:
                if arm != sweep.reliable_arm and (shown := _row(cell, point, arm, source, sweep)):
                    rows.append(shown)
    notes = list(_NOTES)
    if sweep.unlike:
        notes.append(
            f"{len(sweep.unlike)} runs are left out, because the detector, asked again about their "
            "own norms, did not repeat what it had said."
        )
    return Table(
        title=f"{summary['experiment']}: what the phase detector says of gradients without loss",
        columns=[
            "Arm",
            "By the norms of",
            "Critical in its runs (%)",
            "By these norms (%)",
            "Missed (%)",
            "Invented (%)",
            "Kappa",
        ],
        rows=rows,
        notes=notes if rows else [],
        records=sweep.rows.to_dicts() if rows else [],
    )


def _row(
    cell: dict[str, Any], point: str, arm: str, source: str, sweep: Sweep
) -> list[Cell] | None:
    without, missed, invented = (
        entry(cell, "arms", arm, f"{PREFIX}{source}.{name}")
        for name in ("critical", "missed", "invented")
    )
    if without.value is None:
        return None
    return row(
        Cell(text=arm, detail=point),
        f"{sweep.reliable_arm}" if source == RELIABLE else "its workers, before loss",
        cells.measured(entry(cell, "arms", arm, "critical_share"), PERCENT),
        cells.measured(without, PERCENT),
        *(cells.measured(each, PERCENT, with_n=False) for each in (missed, invented)),
        formatting.number(_kappa(without, missed, invented)),
    )


def _kappa(without: Estimate, missed: Estimate, invented: Estimate) -> float | None:
    """Cohen's kappa of all rounds of all seeds, which have equally many; None where it is 0 / 0."""
    assert without.value is not None and missed.value is not None and invented.value is not None
    one = without.value
    other = one - missed.value + invented.value  # the run's own share, of the same runs
    by_chance = one * other + (1 - one) * (1 - other)
    agreed = 1 - missed.value - invented.value
    return None if by_chance > 1 - 1e-12 else (agreed - by_chance) / (1 - by_chance)
