"""Tables of a whole experiment: what was found, what each arm measured, and ratios of pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from analysis import formatting
from analysis.data.evidence import INVALID_INCLUDED
from analysis.data.load import Results
from analysis.data.metrics import ALL_BURSTS, TASK_METRICS, describe, in_table
from analysis.formatting import DASH, PERCENT, RATIO, Unit, joined, metric_unit, number
from analysis.statistics import ENOUGH_SEEDS, Estimate, holm
from analysis.summary import lookup
from analysis.summary.lookup import BASELINE, entry, is_of_several_tasks, of_programs, points
from analysis.tables import rendering
from analysis.tables.rendering import Cell, Table, measured, missing, row, table_of

WAIVED = "With waived gates: "  # begins a note; the cautions tell more of it
_CALM = "round_latency_s.calm_mean"  # of programs alone: of training the ratios have it
_PACED = ("communication_share", "compute_to_communication")
_NOT_PHASED = "without effect: the tolerance of this arm does not depend on the phase"
_SEVERAL_TASKS = "several tasks, of which a mean would be nobody's: see the tables by point"
_NOTHING_LEARNT = "nothing is learnt: with pace 'payload-only' payloads have random content"


def main_table(
    summary: dict[str, Any], *, shown: Sequence[str] = in_table("main"), with_runs: bool = True
) -> Table:
    """One column per arm, one row per metric; the records hold every metric unrounded."""
    arms: dict[str, Any] = summary["arms"]
    counts = [cell["n_runs"] for cell in arms.values()]
    rows = [row("Runs (n)", *map(str, counts))]
    used = [", ".join(cell.get("congestion_control", [])) for cell in arms.values()]
    if any(used) and with_runs:
        rows.append(row("Congestion control, read back", *(each or DASH for each in used)))
    estimates = {
        name: [entry(summary, "arms", arm, name) for arm in arms]
        for name in (lookup.with_programs(shown, arms) if with_runs else shown)
    }
    # All latencies share a unit, so that they can be compared within a column too.
    latencies = [
        of_arm.value
        for name, of_arms in estimates.items()
        if "latency_s." in name
        for of_arm in of_arms
    ]
    paces = summary.get("paces") or ["real"]
    phased = {critical_round["arm"] for critical_round in lookup.critical_rounds(summary)}
    for name, of_arms in estimates.items():
        if not _is_shown(summary, name, of_arms):
            continue
        of_unit = latencies if "latency_s." in name else [of_arm.value for of_arm in of_arms]
        label, unit = metric_unit(name, of_unit)
        if name in _PACED and paces != ["real"]:
            label += f", {' and '.join(paces)}"
        absent = describe(name).absent
        if name in TASK_METRICS and paces == ["payload-only"]:
            absent = _NOTHING_LEARNT
        elif name in TASK_METRICS and is_of_several_tasks(summary):
            absent = _SEVERAL_TASKS
        cells = [_cell(of_arm, unit, absent, n) for of_arm, n in zip(of_arms, counts, strict=True)]
        if name == "critical_share":
            cells = [
                cell
                if not phased or arm in phased or cell.note
                else replace(cell, note=_NOT_PHASED)
                for arm, cell in zip(arms, cells, strict=True)
            ]
        rows.append(row(label, *cells))
    return Table(
        title=f"{summary['experiment']}: what was measured, by arm",
        columns=["", *arms],
        rows=rows if with_runs else rows[1:],
        notes=_notes(summary),
        records=_records(summary),
    )


def _is_shown(summary: dict[str, Any], name: str, estimates: list[Estimate]) -> bool:
    known = any(estimate.value is not None for estimate in estimates)
    if summary.get("workload") == "programs":  # which of all metrics they have is up to them
        return known
    if name == _CALM:
        return False
    if name == "workers_lost":
        return any(estimate.value for estimate in estimates)
    if name == "accuracy":
        return known or summary.get("task_metric") != "perplexity"
    return known or not describe(name).optional


def _cell(estimate: Estimate, unit: Unit, absent: str, n_runs: int) -> Cell:
    if estimate.value is None:
        return missing(note=absent if n_runs else "no ok run of this arm")
    return measured(estimate, unit, with_n=estimate.n != n_runs)


def _notes(summary: dict[str, Any]) -> list[str]:
    measure = next(iter(of_programs(summary["arms"])), "rounds_per_s")
    seeds = [entry(summary, "arms", arm, measure).n for arm in summary["arms"]]
    fewest = min(filter(None, seeds), default=0)
    most = max(seeds, default=0)
    notes = []
    if most == 1:
        notes.append("Each number comes from one seed: there is no interval.")
    elif most >= ENOUGH_SEEDS:
        notes.append("Each number is a mean over seeds, with its 95 % interval (Student's t).")
    elif most > 1:
        notes.append("Each number is a mean over seeds, with the values of the seeds.")
    if most > 1 and fewest < ENOUGH_SEEDS:
        notes.append(f"Fewer than {ENOUGH_SEEDS} seeds give no interval; here n = {fewest}.")
    if points(summary):
        notes.append(
            "These are averages over the points of the sweep; tables by point follow below."
        )
    verdicts = summary["verdicts"]
    planned = sum(verdicts.values())
    outside = verdicts | {
        "ok": 0,
        "invalid": verdicts["invalid"] - summary.get("invalid_included", 0),
    }
    if left_out := [f"{count} {name}" for name, count in outside.items() if count]:
        notes.append(f"Left out of these numbers: {', '.join(left_out)} (of {planned}).")
    if pairs := " and ".join(lookup.unlike(summary)):
        both = "both have, of one machine and code" if "no_pairs" in summary else "both have"
        notes.append(
            f"The means of {pairs} are of different runs. The ratios are of those that {both}."
        )
    if waived := summary.get("waived_gates"):
        notes.append(f"{WAIVED}{'; '.join(waived)}.")
    return notes


def _records(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"arm": arm, "metric": name, "unit": describe(name).unit}
        | entry(summary, "arms", arm, name).as_json()
        for arm, cell in summary["arms"].items()
        for name in _names(cell)
    ]


def _names(cell: dict[str, Any], path: str = "") -> Iterator[str]:
    """The metrics that an arm has in a summary."""
    for key, value in cell.items():
        if isinstance(value, dict):
            yield from [path + key] if "value" in value else _names(value, f"{path}{key}.")


NOTE = (
    "A ratio is the geometric mean of the ratios at the seeds that both arms have. Beside it are "
    f"its 95 % interval (Student's t on the logarithms; below {ENOUGH_SEEDS} pairs the ratios "
    "themselves), the number n of pairs, and the p-value of the paired t test that belongs to it. "
    "All p-values of this table are corrected together for being several (Holm)."
)
_DIFFERENCES = {
    "accuracy": ("Final test accuracy, difference (points)", formatting.POINTS),
    "perplexity": ("Final perplexity, difference (above 0 the reference is better)", RATIO),
}


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """A metric in which pairs of arms are compared, by ratio or by difference."""

    part: dict[str, Any]  # the summary, or a point of it
    metric: str
    label: str
    unit: Unit = RATIO
    section: str = "ratios"

    def estimate(self, left: str, right: str) -> Estimate:
        return entry(self.part, self.section, self._pair(left, right), self.metric)

    def p_value(self, left: str, right: str) -> float | None:
        return lookup.p_value(self.part, self.section, self._pair(left, right), self.metric)

    def _pair(self, left: str, right: str) -> str:
        return f"{left}{'/' if self.section == 'ratios' else '-'}{right}"


def _by_ratio(summary: dict[str, Any], metrics: Sequence[str]) -> Iterator[_Compared]:
    """The metrics with any ratio. Of others the main table says why they have no value."""
    for metric in metrics:
        if any(
            entry(summary, "ratios", ratio_name, metric).value
            for ratio_name in lookup.ratio_names(summary)
        ):
            yield _Compared(part=summary, metric=metric, label=describe(metric).label)


def _by_difference(summary: dict[str, Any]) -> Iterator[_Compared]:
    """The task metric of the whole; of several tasks that of each point that has it."""
    if not (task := summary.get("task_metric")):
        return
    label, unit = _DIFFERENCES[task]
    several = is_of_several_tasks(summary)
    for part in points(summary) if several else [summary]:
        if not several or any(
            entry(part, "arms", arm, task).value is not None for arm in part["arms"]
        ):
            where = lookup.factors_text(part.get("factors", {}))
            yield _Compared(
                part=part,
                metric=task,
                label=joined(label, where),
                unit=unit,
                section="differences",
            )


def ratio_table(summary: dict[str, Any]) -> Table:
    """Every arm over the reference arm; above 1 the reference is better. No row for one arm."""
    compared = lookup.pairs(list(summary["arms"]))
    names = lookup.ratio_names(summary)
    shown = list(_by_ratio(summary, lookup.with_programs(in_table("ratios"), summary["arms"])))
    lines = [*shown, *_by_difference(summary)] if compared else []
    corrected = iter(holm([line.p_value(*pair) for line in lines for pair in compared]))
    p_values = [[next(corrected) for _ in compared] for _ in lines]
    notes = [NOTE]
    if task := summary.get("task_metric"):
        notes.append(f"The {task} is compared by difference: first minus second.")
    return Table(
        title=f"{summary['experiment']}: ratios of paired runs",
        columns=["", *names],
        rows=[
            row(
                line.label,
                *(
                    rendering.ratio(line.estimate(*pair), line.unit, p=p)
                    for pair, p in zip(compared, of_line, strict=True)
                ),
            )
            for line, of_line in zip(lines, p_values, strict=True)
        ],
        notes=notes + _unpaired(summary),
        records=[
            {"ratio": name, "metric": line.metric, **line.estimate(*pair).as_json()}
            | {"p_value": line.p_value(*pair), "p_value_corrected": p_values[at][place]}
            for place, (name, pair) in enumerate(zip(names, compared, strict=True))
            for at, line in enumerate(shown)
        ],
    )


def _unpaired(summary: dict[str, Any]) -> list[str]:
    """Which seeds enter no ratio, and why."""
    where = " at some point of the sweep" if points(summary) else ""
    return [
        f"{pair} leaves out {seeds}{where}: {why}."
        for pair in lookup.unlike(summary)
        for seeds, why in formatting.left_out(summary, pair)
    ]


_MOST_FLOWS = _MOST_TASKS = 3
_BETTER = {"s": "is faster", "bps": "has more"}


def findings_table(summary: dict[str, Any]) -> Table:
    """What was found: a row per pair, a column per main quantity, and in each cell a verdict."""
    compared = sorted(lookup.pairs(list(summary["arms"])), key=lambda pair: pair[0] != BASELINE)
    goodputs = [
        of_program
        for of_program in of_programs(summary["arms"])
        if of_program.endswith(".goodput_bps")
    ]
    latencies = list(_by_ratio(summary, [ALL_BURSTS, "round_latency_s.mean"]))[:1]
    shown = [*latencies, *_by_ratio(summary, [*goodputs[:_MOST_FLOWS], "training_time_s"])]
    tasks = list(_by_difference(summary)) if shown else []
    shown += tasks if len(tasks) <= _MOST_TASKS else []  # the tables by point have all
    cells = {pair: [_finding(each, *pair) for each in shown] for pair in compared}
    seeds = [shown[-1].estimate(*pair).n for pair in compared] if shown else []
    fewest = min(filter(None, seeds), default=ENOUGH_SEEDS)
    notes = [f"n = {fewest}: an interval needs {ENOUGH_SEEDS} paired seeds."]
    return Table(
        title=f"{summary['experiment']}: what was found, by ratios of paired runs",
        columns=["", *(each.label for each in shown)],
        rows=[row("/".join(pair), *line) for pair, line in cells.items()] if shown else [],
        notes=[_not_compared(summary)] if not shown else notes * (fewest < ENOUGH_SEEDS),
    )


def first_finding(summary: dict[str, Any]) -> str:
    """The first cell of the findings in one line, or why there is none."""
    table = findings_table(summary)
    mark = f"{INVALID_INCLUDED}: " if summary.get("invalid_included") else ""
    if not table.rows:
        return mark + table.notes[0]
    pair, cell, *_ = table.rows[0]
    return f"{mark}{pair.text}: {table.columns[1]} {cell.text} ({cell.detail})"


def _finding(compared: _Compared, left: str, right: str) -> Cell:
    """A ratio with its verdict; of a sweep its range: a mean over points would be no point's."""
    differs = compared.section == "differences"
    if not differs and len(points(compared.part)) > 1:
        return _range(compared, f"{left}/{right}")
    estimate = compared.estimate(left, right)
    if estimate.value is None:
        return missing()
    unit, same = describe(compared.metric).unit, 0 if differs else 1
    more_is_better = unit == "bps" or compared.metric == "accuracy"
    better = left if (estimate.value > same) is more_is_better else right
    words = "is better" if differs else _BETTER[unit]
    verdict = _doubt(estimate, same) or f"{better} {words}"
    spread = formatting.spread(estimate, compared.unit)
    text = formatting.number(estimate.value, compared.unit) + ("" if differs else " x")
    return Cell(text=text, detail=joined(verdict, spread))


def _range(compared: _Compared, pair: str) -> Cell:
    """The lowest and the highest ratio of a sweep, and at which points they are."""
    ratios = [
        (ratio.value, lookup.factors_text(point["factors"]))
        for point in points(compared.part)
        if (ratio := entry(point, "ratios", pair, compared.metric)).value is not None
    ]
    if not ratios:
        return missing()
    (low, at_low), (high, at_high) = min(ratios), max(ratios)
    ends = dict.fromkeys(map(formatting.number, (low, high)))
    where = f"lowest at {at_low}, highest at {at_high}" if low < high else ""
    count = f"{len(ratios)} of {len(points(compared.part))} points"
    return Cell(text=f"{formatting.TO.join(ends)} x", detail=joined(count, where))


def _doubt(estimate: Estimate, same: float) -> str:
    """Where the interval includes `same`, the value of no difference, or the seeds disagree."""
    if estimate.n == 1:
        return "one seed"
    ends = estimate.values or [end for end in (estimate.low, estimate.high) if end is not None]
    return "no clear difference" if ends and min(ends) <= same <= max(ends) else ""


def _not_compared(summary: dict[str, Any]) -> str:
    arms = summary["arms"]
    if len(arms) > 1 and any(cell["n_runs"] for cell in arms.values()):
        (_, reference), *_ = lookup.pairs(list(arms))
        return f"nothing to compare yet: needs ok runs of {reference} and another arm with one seed"
    for metric in (*list(of_programs(arms))[:1], "training_time_s"):
        for arm in arms:
            value = entry(summary, "arms", arm, metric)
            if value.value is not None:
                unit = formatting.unit_for(describe(metric).unit, (value.value,))
                shown = formatting.with_interval(value, unit)
                return f"{arm}: {describe(metric).label} {shown}"
    return "no run is ok yet: the table of runs says why"


_ROUND_PARTS = {
    "compute_s": "Compute (s)",
    "gather_s": "Gather (s)",
    "mean_update_s": "Mean, update (s)",
    "broadcast_s": "Broadcast (s)",
    "waiting_s": "Waiting (s)",
}


def round_time_table(results: Results) -> Table:
    """A row per arm: its mean round, and the mean and the share of each of the round's parts."""
    of_arms = results.frame("round_parts").group_by("arm")
    means = of_arms.agg(pl.len().alias("rounds"), pl.col("iteration_s", *_ROUND_PARTS).mean())
    by_arm = {mean["arm"]: mean for mean in means.iter_rows(named=True)}

    def part(name: str) -> Callable[[dict[str, Any]], Cell]:
        def cell(of_arm: dict[str, Any]) -> Cell:
            share = number(of_arm[name] / of_arm["iteration_s"], PERCENT)
            return Cell(text=number(of_arm[name]), detail=f"{share} %")

        return cell

    return table_of(
        f"{results.experiment}: where a round's time goes",
        {
            "Arm": lambda of_arm: of_arm["arm"],
            "Round (s)": lambda of_arm: number(of_arm["iteration_s"]),
            **{heading: part(name) for name, heading in _ROUND_PARTS.items()},
        },
        [by_arm[arm] for arm in results.arms if arm in by_arm],
        notes=[
            "Means over the rounds of the ok runs, in brackets the share of the round. Compute: "
            "mean over the workers. Waiting: for slower workers, and for messages between steps."
        ],
        records=[by_arm[arm] for arm in results.arms if arm in by_arm],
    )


_OF_PHASES = (
    "In critical rounds these arms tolerate little loss, in all others much. For other arms the "
    "phase changes nothing."
)


def critical_rounds_table(summary: dict[str, Any]) -> Table:
    """One row per arm whose tolerance depends on the phase; the records hold every run's share."""
    runs, rows = lookup.critical_rounds(summary), []
    for arm in summary["arms"]:
        shares = [(run["critical_share"], run) for run in runs if run["arm"] == arm]
        if shares:
            shares.sort(key=lambda each: each[0])
            mean = rendering.measured(entry(summary, "arms", arm, "critical_share"), PERCENT)
            same = "all runs" if shares[1:] and shares[0][0] == shares[-1][0] else ""
            ends = (
                Cell(
                    text=formatting.number(share, PERCENT),
                    detail=same or formatting.joined(each["point"], f"seed {each['seed']}"),
                )
                for share, each in (shares[0], shares[-1])
            )
            rows.append(row(arm, mean, *ends))
    return Table(
        title=f"{summary['experiment']}: critical rounds, where the tolerance depends on the phase",
        columns=["Arm", "Share of critical rounds (%)", "Lowest of a run", "Highest of a run"],
        rows=rows,
        notes=[_OF_PHASES] if rows else [],
        records=runs,
    )
