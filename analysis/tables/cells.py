"""Turns measured numbers into the cells of a table."""

from __future__ import annotations

from analysis.statistics.intervals import Estimate
from analysis.tables.rendering import Cell
from analysis.words import formatting
from analysis.words.formatting import Unit


def measured(
    estimate: Estimate,
    unit: Unit = formatting.RATIO,
    *,
    with_n: bool = True,
    p: float | None = None,
) -> Cell:
    """A number with its interval or the seeds' values; on request the number of seeds and p."""
    details = (
        formatting.spread(estimate, unit),
        f"n = {estimate.n}" if with_n else "",
        "" if p is None else f"p {formatting.p_value(p)}",
    )
    return Cell(text=formatting.number(estimate.value, unit), detail=formatting.joined(*details))


def missing(*, note: str = "", detail: str = "") -> Cell:
    """A dash, with the reason as a footnote or in brackets."""
    return Cell(text=formatting.DASH, note=note, detail=detail, tone="quiet")


def ratio(estimate: Estimate, unit: Unit = formatting.RATIO, *, p: float | None = None) -> Cell:
    """A ratio or a difference with its interval, the number of pairs and the p-value."""
    if estimate.value is None:
        return missing(note="no pair of ok runs in which both arms have a value above 0")
    return measured(estimate, unit, p=p)
