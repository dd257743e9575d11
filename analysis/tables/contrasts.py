"""The table of contrasts: how ratios change between neighbouring points of a sweep."""

from __future__ import annotations

from typing import Any

from analysis.data.metrics import describe
from analysis.summary.contrasts import METRICS
from analysis.summary.lookup import entry, factors_text, ratio_names
from analysis.tables import cells
from analysis.tables.rendering import Table, row

_NOTE = (
    "Each number is the ratio at the second point over the ratio at the first, as a geometric mean "
    "over the seeds that have both: above 1 the ratio grows. Beside it are its 95 % interval "
    "(Student's t on the logarithms), n, and the p-value of no change, corrected for all contrasts "
    "of this table (Holm)."
)


def contrast_table(summary: dict[str, Any]) -> Table:
    """Of the first metric that has any: a row per pair of neighbours, a column per ratio."""
    found = summary.get("contrasts") or []
    compared = ratio_names(summary)
    shown = next(
        (
            metric
            for metric in METRICS
            if any(entry(each, "ratios", pair, metric).n for each in found for pair in compared)
        ),
        METRICS[0],
    )
    rows, records = [], []
    for each in found:
        ends = {end: factors_text(each[end]) for end in ("from", "to")}
        line = row(*ends.values())
        for pair in compared:
            estimate = entry(each, "ratios", pair, shown)
            p = _corrected(each, pair, shown)
            line.append(cells.ratio(estimate, p=p) if estimate.n else cells.missing())
            known = {"ratio": pair, "metric": shown, **estimate.as_json(), "p_value_corrected": p}
            records.append(ends | known)
        rows.append(line)
    return Table(
        title=f"{summary['experiment']}: {describe(shown).label}, how ratios change between "
        "neighbouring points",
        columns=["From", "To", *compared],
        rows=rows,
        notes=[_NOTE],
        records=records,
    )


def _corrected(contrast: dict[str, Any], pair: str, metric: str) -> float | None:
    found = contrast["ratios"].get(pair, {})
    for part in metric.split("."):
        found = found.get(part, {})
    value = found.get("p_value_corrected")
    return value if isinstance(value, float) else None
