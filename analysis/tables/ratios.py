"""Tables of ratios of paired runs: of an experiment, by point, between points, and the findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis import formatting
from analysis.data.metrics import ALL_BURSTS, describe, in_table
from analysis.formatting import RATIO, Unit, joined, number
from analysis.statistics import ENOUGH_SEEDS, Estimate, holm
from analysis.summary import lookup
from analysis.summary.document import CONTRASTED
from analysis.summary.lookup import BASELINE, entry, factors_text, of_programs, points, ratio_names
from analysis.tables import rendering
from analysis.tables.rendering import Cell, Table, missing, row

_NOTE = (
    "A ratio is the geometric mean of the ratios at the seeds that both arms have. Beside it are "
    f"its 95 % interval (Student's t on the logarithms; below {ENOUGH_SEEDS} pairs the ratios "
    "themselves), the number n of pairs, and the p-value of the paired t test that belongs to it. "
    "All p-values of this table are corrected together for being several (Holm)."
)
_CONTRAST_NOTE = (
    "Each number is the ratio at the second point over the ratio at the first, as a geometric mean "
    "over the seeds that have both: above 1 the ratio grows. Beside it are its 95 % interval "
    "(Student's t on the logarithms), n, and the p-value of no change, corrected for all contrasts "
    "of this table (Holm)."
)
_BOUNDS_NOTE = (
    "Byte bound and pass limit are those of a transfer outside critical phases that the burst hits "
    "from end to end. Byte bound, if only bytes cost time: (1 - low) / (1 - high). Pass limit, if "
    "only passes cost time, each as far as it is walked (expected; few chunks lie around it): "
    "N(low) / N(high) with N(P) = n - 1 + (1 - P / q^(n - 1)) / (1 - q), n = ceil(ln P / ln q). "
    "Here low and high are the tolerances of fixed-low and dblp, and q is the loss."
)
_BOUNDED = "fixed-low/dblp"  # whose ratio a point's limits are about
_LIMITS = {"bytes": "byte_bound", "passes": "pass_limit"}
_DIFFERENCES = {
    "accuracy": ("Final test accuracy, difference (points)", formatting.POINTS),
    "perplexity": ("Final perplexity, difference (above 0 the reference is better)", RATIO),
}
Pair = tuple[str, str]  # the numerator, or minuend, and the reference arm
_NO_PAIR = "no pair of ok runs in which both arms have a value above 0"


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """A metric in which pairs of arms are compared, by ratio or by difference: a table's row."""

    part: Mapping[str, Any]  # the summary, a point of it, or a contrast
    metric: str
    heads: Sequence[str]  # its first cells
    unit: Unit = RATIO
    section: str = "ratios"
    names: Mapping[str, Any] = field(default_factory=dict)  # of its records

    def estimate(self, pair: Pair) -> Estimate:
        return entry(self.part, self.section, self._key(pair), self.metric)

    def p_value(self, pair: Pair) -> float | None:
        return lookup.p_value(self.part, self.section, self._key(pair), self.metric)

    def _key(self, pair: Pair) -> str:
        return ("/" if self.section == "ratios" else "-").join(pair)

    def cell(self, pair: Pair, p: float | None) -> Cell:
        """The ratio with p, or why there is none; a note names the seeds that lack a pair."""
        estimate, arms = self.estimate(pair), self.part.get("arms", {})
        is_point = "factors" in self.part and self.section == "ratios"
        if estimate.value is not None:
            note = ""
            if is_point:
                seeds = formatting.left_out(self.part, "/".join(pair))
                note = "; ".join(f"without {left_out}: {why}" for left_out, why in seeds)
            return replace(rendering.measured(estimate, self.unit, p=p), note=note)
        if not is_point:
            return missing(note=_NO_PAIR if arms or estimate.n else "")
        empty = [arm for arm in pair if not arms[arm]["n_runs"]]
        why = f"0 ok runs of {' and '.join(empty)}" if empty else "no seed in common"
        if "/".join(pair) in self.part.get("no_pairs", {}):
            why = "no seed in common on one machine with the same code"
        return missing(detail=why)


def _table(
    title: str, heads: Sequence[str], pairs: Sequence[Pair], lines: Sequence[_Compared], note: str
) -> Table:
    """A row for each line, a column for each pair; p-values are corrected over the whole table."""
    corrected = iter(holm([line.p_value(pair) for line in lines for pair in pairs]))
    rows, records = [], []
    for line in lines:
        cells = row(*line.heads)
        for pair in pairs:
            p = next(corrected)
            cells.append(line.cell(pair, p))
            record = {**line.names, "ratio": "/".join(pair), "metric": line.metric}
            record |= line.estimate(pair).as_json()
            records.append(record | {"p_value": line.p_value(pair), "p_value_corrected": p})
        rows.append(cells)
    columns = [*heads, *map("/".join, pairs)]
    return Table(title=title, columns=columns, rows=rows, notes=[note], records=records)


def _by_ratio(summary: dict[str, Any], metrics: Sequence[str]) -> Iterator[_Compared]:
    """The metrics with any ratio. Of others the main table says why they have no value."""
    for metric in metrics:
        if any(entry(summary, "ratios", pair, metric).value for pair in ratio_names(summary)):
            yield _Compared(part=summary, metric=metric, heads=[describe(metric).label])


def _by_difference(summary: dict[str, Any]) -> Iterator[_Compared]:
    """The task metric of the whole; of several tasks that of each point that has it."""
    if not (task := summary.get("task_metric")):
        return
    label, unit = _DIFFERENCES[task]
    several = lookup.is_of_several_tasks(summary)
    for part in points(summary) if several else [summary]:
        values = [entry(part, "arms", arm, task).value for arm in part["arms"]]
        if not several or any(value is not None for value in values):
            heads = [joined(label, factors_text(part.get("factors", {})))]
            section = "differences"
            yield _Compared(part=part, metric=task, heads=heads, unit=unit, section=section)


def ratio_table(summary: dict[str, Any]) -> Table:
    pairs, metrics = (
        lookup.pairs(summary),
        lookup.with_programs(in_table("ratios"), summary["arms"]),
    )
    lines = [*_by_ratio(summary, metrics), *_by_difference(summary)] if pairs else []
    table = _table(f"{summary['experiment']}: ratios of paired runs", [""], pairs, lines, _NOTE)
    task, where = summary.get("task_metric"), " at some point of the sweep" * bool(points(summary))
    notes = [f"The {task} is compared by difference: first minus second."] if task else []
    notes += [
        f"{pair} leaves out {seeds}{where}: {why}."
        for pair in lookup.unlike(summary)
        for seeds, why in formatting.left_out(summary, pair)
    ]
    records = [record for record in table.records if record["metric"] != task]
    return replace(table, notes=[*table.notes, *notes], records=records)


def point_tables(summary: dict[str, Any], *, only: Sequence[str] = CONTRASTED) -> list[Table]:
    """Every arm over the reference at each point; the gather's in bursts beside the bounds."""
    shown = lookup.with_values(points(summary), "ratios", ratio_names(summary), only)
    return [_point_table(summary, metric) for metric in shown]


def _point_table(summary: dict[str, Any], metric: str) -> Table:
    pairs, parts = lookup.pairs(summary), points(summary)
    lines = [
        _Compared(
            part=part, metric=metric, heads=[factors_text(part["factors"])], names=part["factors"]
        )
        for part in parts
    ]
    label = describe(metric).label
    title = f"{summary['experiment']}: {label}, ratios of paired runs by point of the sweep"
    table = _table(title, ["Point"], pairs, lines, _NOTE)
    limited = metric == lookup.bounded_metric(summary) and any(part["limits"] for part in parts)
    if not limited or _BOUNDED not in table.columns:
        return table
    at = table.columns.index(_BOUNDED) - 1
    table.notes.append(_BOUNDS_NOTE)
    table.columns[at + 2 : at + 2] = [f"Byte bound of {_BOUNDED}", f"Pass limit of {_BOUNDED}"]
    for number_of_point, (part, cells) in enumerate(zip(parts, table.rows, strict=True)):
        limits = [number(part["limits"].get(limit)) for limit in _LIMITS]
        cells[at + 2 : at + 2] = [Cell(text=limit, tone="quiet") for limit in limits]
        record = table.records[number_of_point * len(pairs) + at]
        record |= {_LIMITS[limit]: value for limit, value in part["limits"].items()}
    return table


def contrast_table(summary: dict[str, Any]) -> Table:
    """The contrasts of the first metric that has any: a row per pair of neighbouring points."""
    contrasts, names = summary.get("contrasts") or [], ratio_names(summary)
    shown = lookup.with_values(contrasts, "ratios", names, CONTRASTED)
    metric = next(iter(shown), CONTRASTED[0])
    lines = []
    for contrast in contrasts:
        ends = {end: factors_text(contrast[end]) for end in ("from", "to")}
        heads = list(ends.values())
        lines.append(_Compared(part=contrast, metric=metric, heads=heads, names=ends))
    label = describe(metric).label
    title = f"{summary['experiment']}: {label}, how ratios change between neighbouring points"
    return _table(title, ["From", "To"], lookup.pairs(summary), lines, _CONTRAST_NOTE)


_MOST_FLOWS = _MOST_TASKS = 3
_BETTER = {"s": "is faster", "bps": "has more"}


def findings_table(summary: dict[str, Any]) -> Table:
    """The findings: a row per pair, a column per main quantity, and in each cell a verdict."""
    pairs = sorted(lookup.pairs(summary), key=lambda pair: pair[0] != BASELINE)
    goodputs = [name for name in of_programs(summary["arms"]) if name.endswith(".goodput_bps")]
    latencies = list(_by_ratio(summary, [ALL_BURSTS, "round_latency_s.mean"]))[:1]
    shown = [*latencies, *_by_ratio(summary, [*goodputs[:_MOST_FLOWS], "training_time_s"])]
    tasks = list(_by_difference(summary)) if shown else []
    shown += tasks if len(tasks) <= _MOST_TASKS else []  # the tables by point have all
    rows = [
        row("/".join(pair), *(_finding(compared, pair) for compared in shown)) for pair in pairs
    ]
    seeds = [shown[-1].estimate(pair).n for pair in pairs] if shown else []
    fewest = min(filter(None, seeds), default=ENOUGH_SEEDS)
    notes = [f"n = {fewest}: an interval needs {ENOUGH_SEEDS} paired seeds."]
    return Table(
        title=f"{summary['experiment']}: what was found, by ratios of paired runs",
        columns=["", *(compared.heads[0] for compared in shown)],
        rows=rows if shown else [],
        notes=[_not_compared(summary)] if not shown else notes * (fewest < ENOUGH_SEEDS),
    )


def first_finding(summary: dict[str, Any]) -> str:
    table = findings_table(summary)
    if not table.rows:
        return table.notes[0]
    pair, cell, *_ = table.rows[0]
    return f"{pair.text}: {table.columns[1]} {cell.text} ({cell.detail})"


def _finding(compared: _Compared, pair: Pair) -> Cell:
    """A ratio with its verdict; of a sweep its range: a mean over points would be no point's."""
    differs = compared.section == "differences"
    if not differs and len(points(compared.part)) > 1:
        return _range(compared, pair)
    estimate = compared.estimate(pair)
    if estimate.value is None:
        return missing()
    unit, same = describe(compared.metric).unit, 0 if differs else 1
    more_is_better = unit == "bps" or compared.metric == "accuracy"
    better = pair[(estimate.value > same) is not more_is_better]
    verdict = f"{better} {'is better' if differs else _BETTER[unit]}"
    ends = estimate.values or [end for end in (estimate.low, estimate.high) if end is not None]
    if estimate.n == 1:
        verdict = "one seed"
    elif ends and min(ends) <= same <= max(ends):
        verdict = "no clear difference"
    text = number(estimate.value, compared.unit) + ("" if differs else " x")
    return Cell(text=text, detail=joined(verdict, formatting.spread(estimate, compared.unit)))


def _range(compared: _Compared, pair: Pair) -> Cell:
    parts = points(compared.part)
    ratios = [
        (ratio.value, factors_text(point["factors"]))
        for point in parts
        if (ratio := replace(compared, part=point).estimate(pair)).value is not None
    ]
    if not ratios:
        return missing()
    (low, at_low), (high, at_high) = min(ratios), max(ratios)
    ends = dict.fromkeys(map(number, (low, high)))
    where = f"lowest at {at_low}, highest at {at_high}" if low < high else ""
    count = f"{len(ratios)} of {len(parts)} points"
    return Cell(text=f"{formatting.TO.join(ends)} x", detail=joined(count, where))


def _not_compared(summary: dict[str, Any]) -> str:
    arms = summary["arms"]
    if len(arms) > 1 and any(cell["n_runs"] for cell in arms.values()):
        (_, reference), *_ = lookup.pairs(summary)
        return f"nothing to compare yet: needs ok runs of {reference} and another arm with one seed"
    for metric in (*of_programs(arms)[:1], "training_time_s"):
        for arm in arms:
            value = entry(summary, "arms", arm, metric)
            if value.value is not None:
                unit = formatting.unit_for(describe(metric).unit, (value.value,))
                cell = rendering.measured(value, unit)
                label = describe(metric).label
                return f"{arm}: {label} {cell.text} {unit.symbol} ({cell.detail})"
    return "no run is ok yet: the table of runs says why"
