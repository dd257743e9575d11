"""Keeps experiments' results small enough to commit, and writes the blocks that pages have of them.

`./lab report NAME --readme` does both. `verification` recomputes what is kept and the pages.
"""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis import formatting
from analysis.comparison import compare
from analysis.data import kept_rows
from analysis.data.evidence import Evidence, machine_text
from analysis.data.load import load
from analysis.data.metrics import ALL_BURSTS, TASK_METRICS, describe, in_table, is_tail_quantile
from analysis.figures import style
from analysis.figures.claims import Gain, gains
from analysis.report import remarks
from analysis.report.writing import write_report
from analysis.statistics import ENOUGH_SEEDS, NOTHING, Estimate, difference_interval, ratio_interval
from analysis.summary import claims, pairing
from analysis.summary.document import json_text, summarise
from analysis.summary.lookup import (
    bounded_metric,
    entry,
    factors_text,
    points,
    published_entries,
)
from analysis.tables import rendering
from analysis.tables.by_arm import main_table, metric_tables
from analysis.tables.claims import Kept, claims_table, comparisons, verdicts_table
from analysis.tables.ratios import findings_table, point_tables
from analysis.tables.rendering import Cell, Table, narrowed, row, to_markdown, transposed

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "experiments/results"
SUMMARY, PROVENANCE, MAIN_TABLE = "summary.json", "provenance.json", "main.md"
_SCHEMA = 2  # of provenance.json
SIMULATED = "-simulated"  # ends the name of a folder beside that of measured results
AGAIN = "keep these results again"
_FIGURE_OF_CLAIMS = "docs/images/does-it-hold.svg"
_FIGURES = ("ratio-along-factor.png", "learning-along-factor.png", "latency-over-rounds.png")


def keep(results_dir: Path, experiment: str | None = None, *, root: Path = ROOT) -> Path:
    results = load(results_dir, experiment)
    if not results.ok_runs:
        raise ValueError(f"{results_dir}: no ok run of {results.experiment}; valid: one or more")
    folder = root / RESULTS / results.experiment
    kinds = {is_simulated(run.manifest) for run in results.ok_runs}
    if kinds == {True} and _kinds(folder) == {False}:
        folder = folder.with_name(folder.name + SIMULATED)
    if len(kinds | _kinds(folder)) > 1:
        raise ValueError(
            f"{results_dir}: of {results.experiment} there are simulated runs and measured ones, "
            f"what {folder} keeps included; valid: one kind of them under one name"
        )
    report = write_report(results_dir, results.experiment)
    folder.mkdir(parents=True, exist_ok=True)
    kept_rows.write(folder, results)
    write_derived(folder)
    for path in report.figures:
        if path.name in _FIGURES:
            shutil.copyfile(path, folder / path.name)
    return folder


def is_simulated(manifest: dict[str, Any]) -> bool:
    return bool(manifest.get("simulated"))


def _kinds(folder: Path) -> set[bool]:
    kept = (folder / kept_rows.MANIFEST).is_file()
    return {is_simulated(read(folder, kept_rows.MANIFEST)[0])} if kept else set()


def derived(evidence: kept_rows.KeptRows) -> dict[str, str]:
    summary = summarise(evidence)
    rows = recomputable(in_table("main"), from_rounds=evidence.rounds is not None)
    shown = {left + sign + right for left, right in evidence.compared for sign in "/-"}
    return {
        SUMMARY: json_text(_small(summary, shown)),
        PROVENANCE: json_text(_provenance(evidence, summary)),
        MAIN_TABLE: to_markdown(main_table(summary, shown=rows)),
    }


def recomputable(metrics: Sequence[str], *, from_rounds: bool) -> list[str]:
    """Those of some metrics that follow from what is kept: quantiles do where each round is."""
    return [metric for metric in metrics if from_rounds or not is_tail_quantile(metric)]


def write_derived(folder: Path) -> None:
    for name, text in derived(kept_rows.read(folder)).items():
        (folder / name).write_text(text, encoding="utf-8")


def read(folder: Path, *names: str) -> list[dict[str, Any]]:
    return [kept_rows.document_of(folder / name, AGAIN) for name in names or (SUMMARY,)]


def _provenance(results: Evidence, summary: dict[str, Any]) -> dict[str, Any]:
    began = sorted(str(run.began_at) for run in results.runs if run.began_at)
    machines = list(dict.fromkeys(machine_text(run.manifest) for run in results.ok_runs))
    planned = {run.key for run in results.runs}
    refused = Counter(run.verdict for run in results.others if run.key in planned)
    del refused["ok"]
    return {
        "schema": _SCHEMA,
        "experiment": results.experiment,
        "command": results.commands[0],
        "further_commands": results.commands[1:],
        "machine": "; ".join(machines),
        "began": began[0] if began else "",
        "commits": sorted({str(run.manifest.get("commit") or "") for run in results.ok_runs}),
        "verdicts": results.verdicts(),
        "refused": dict(sorted(refused.items())),
        "remarks": remarks.cautions(results, summary),
    }


def _small(value: Any, shown: set[str], section: str = "") -> Any:
    """A summary without what no table shows, and with six digits: a small part of its size."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_small(item, shown) for item in value]
    if not isinstance(value, dict):
        return value
    if section in ("ratios", "differences"):
        value = {name: item for name, item in value.items() if name in shown}
    return {
        name: _small(item, shown, name)
        for name, item in value.items()
        if name == "ours" or not (isinstance(item, dict) and item.get("value", 0) is None)
    }


def _rows(name: str) -> list[dict[str, str]]:
    """The rows of a table of this folder that says what pages show."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


# Of an experiment: what its tables show where it is not the usual metrics or, of a sweep, how many
# times longer than the reference arm rounds took that were hit: other ratios, or the arms' values.
_EXPERIMENTS = {line["experiment"]: line for line in _rows("pages.csv")}
_DOCUMENTS = ("README.md", "docs/**/*.md", f"{RESULTS}/README.md")
_COMPARED_METRICS = (
    *("round_latency_s.p50", "round_latency_s.burst_mean", "bytes_sent", "passes_per_transfer"),
    "realised_loss.gather",
)
_COMPARED = "-compared"  # ends the name of a block
_MOST_PAIRS = 2  # whose ratios stand below an experiment's table
_WIDTH = 140  # of a table in a page, in characters


def write_readme(*, root: Path = ROOT) -> list[str]:
    """Write the blocks of all kept results that a document has a place for; returns their names."""
    pages = {path: filled(path, root) for path in documents(root)}  # all, before any is written
    for path, (text, _) in pages.items():
        path.write_text(text, encoding="utf-8")
    _draw_claims(root)
    return [name for _, names in pages.values() for name in names]


def _draw_claims(root: Path) -> None:
    path = root / _FIGURE_OF_CLAIMS
    points = _gains(kept_for_claims(root / RESULTS))
    if points and path.parent.is_dir():
        with style.settings():
            path.write_bytes(style.render(gains(points), path.suffix[1:]))


def _gains(kept: Sequence[Kept]) -> list[Gain]:
    """Our gain over the claimed one, at each point where a claim of a gain was tested."""
    drawn = []
    for claim in claims.load():
        if claim.rule == "cost" or not claim.paper or not math.isfinite(claim.ends[1]):
            continue
        claimed = min((end - claim.nothing for end in claim.bounds), key=abs)
        for group in comparisons(claim, kept):
            for value in group.values:
                ours = value.ours
                if ours.value is None or ours.low is None or ours.high is None:
                    continue
                ends = (ours.value, ours.low, ours.high)
                middle, *interval = ((end - claim.nothing) / claimed for end in ends)
                where = factors_text(value.factors) or group.kept.summary["experiment"]
                drawn.append(
                    Gain(
                        label=f"{claim.id} {where}",
                        verdict=value.verdict,
                        value=middle,
                        low=min(interval),
                        high=max(interval),
                    )
                )
    return drawn


def documents(root: Path) -> list[Path]:
    return [path for pattern in _DOCUMENTS for path in sorted(root.glob(pattern))]


def filled(path: Path, root: Path) -> tuple[str, list[str]]:
    text = path.read_text(encoding="utf-8")
    written = []
    for name in blocks(text):
        content = _content(name, root)
        if content is None:
            continue  # kept by hand, or not yet
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{path}: {begin.strip()} needs one {end}; valid: each once")
        before, rest = text.split(begin)
        after = rest.split(end)[1]
        text = before + begin + content + end + after
        written.append(name)
    return text, written


def blocks(text: str) -> list[str]:
    return re.findall(r"<!-- ([a-z0-9-]+): begin -->", text)


def _content(name: str, root: Path) -> str | None:
    try:
        return _written(name, root)
    except (LookupError, TypeError, AttributeError) as error:  # an entry that is not there
        place = root / RESULTS / name
        raise ValueError(f"{place}: {error!r} in {SUMMARY} or {PROVENANCE}; {AGAIN}") from None


def _written(name: str, root: Path) -> str | None:
    results = root / RESULTS
    if name in (tables := {"claims": claims_table, "verdicts": verdicts_table}):
        kept = kept_for_claims(results)
        return _bare(tables[name](kept)) if kept else None
    if name == "kept":
        listed = sorted(path.parent for path in results.glob(f"*/{PROVENANCE}"))
        return _bare(_list(listed)) if listed else None
    other = answers(results) if name == "answers" else bench(name, results)
    if other is not None:
        return _bare(other)
    if (results / name / PROVENANCE).is_file():
        return block(results / name)
    measured = results / name.removesuffix(_COMPARED)
    simulated = measured.with_name(measured.name + SIMULATED)
    kept_both = all((folder / PROVENANCE).is_file() for folder in (measured, simulated))
    return _comparison(measured, simulated) if name.endswith(_COMPARED) and kept_both else None


def kept_for_claims(results: Path) -> list[Kept]:
    """Reads what is kept of the experiments that test a paper's claims."""
    kept = []
    for path in sorted(results.glob(f"*/{kept_rows.MANIFEST}")):
        summary, manifest = read(path.parent, SUMMARY, kept_rows.MANIFEST)
        if any(True for _ in published_entries(summary)):
            wall_s = kept_rows.wall_s_by_arm(path.parent)
            simulated = is_simulated(manifest)
            kept.append(Kept(summary=summary, simulated=simulated, wall_s=wall_s))
    return kept


def _comparison(measured: Path, simulated: Path) -> str:
    compared = compare(kept_rows.read(measured), kept_rows.read(simulated))
    points = [", ".join(str(level) for level in pair.factors.values()) for pair in compared]
    in_order = sorted(zip(points, compared, strict=True), key=lambda pair: points.index(pair[0]))
    by_place: dict[str, dict[str, Estimate]] = {}
    for point, pair in in_order:
        place = ": ".join(filter(None, (point, pair.arm)))
        by_place.setdefault(place, {})[pair.metric] = pair.ratio
    shown = [name for name in _COMPARED_METRICS if any(name in of for of in by_place.values())]
    columns = ["Ratio", *(describe(metric).label for metric in shown)]
    rows = []
    for place, ratios in by_place.items():
        of_place = [ratios.get(name, NOTHING) for name in shown]
        rows.append(row(place, *(rendering.measured(ratio, with_n=False) for ratio in of_place)))
    table = Table(title="", columns=columns, rows=rows)
    made = []
    for folder, kind in ((measured, "Measured"), (simulated, "Simulated")):
        (provenance,) = read(folder, PROVENANCE)
        made.append(
            f"{kind}: {_commands(provenance)} "
            f"{provenance['began'][:10]}, `experiments/results/{folder.name}/`."
        )
    pairs = sorted({pair.ratio.n for pair in compared})
    spread = "95 % intervals (Student's t)" if pairs[-1] >= ENOUGH_SEEDS else "each pair's ratio"
    words = (
        "Ratios, simulated over measured: geometric means over pairs of runs of one seed, with "
        f"{spread}; pairs: {', '.join(map(str, pairs))}."
    )
    return "\n".join([_parts(table), " ".join([words, *made]), ""])


def _parts(table: Table) -> str:
    return "\n".join(_bare(part) for part in narrowed(table, _WIDTH))


def block(folder: Path) -> str:
    summary, provenance = read(folder, SUMMARY, PROVENANCE)
    from_rounds = (folder / kept_rows.ROUNDS).is_file()
    tables = _tables(summary, recomputable(in_table("pages"), from_rounds=from_rounds))
    shown = [
        # Without its title nobody knows a table's quantity; the experiment's name stands above.
        (f"{table.title.partition(': ')[2]}:\n\n" if points(summary) else "")
        + _parts(_brief(table, seeds(summary)))
        for table in tables
    ]
    findings = findings_table(summary)
    if 0 < len(findings.rows) <= _MOST_PAIRS and not points(summary):
        shown.append(_parts(transposed(findings)))
    return "\n".join([*shown, _words(summary, provenance, folder.name)]) + "\n"


def _brief(table: Table, count: int) -> Table:
    """Leaves out of cells what the words below the table say of all of them."""
    usual, few = f"n = {count}", count < ENOUGH_SEEDS

    def brief(cell: Cell) -> Cell:
        kept = ", ".join(part for part in cell.detail.split(", ") if part != usual)
        return replace(cell, detail=kept.removeprefix("values ") if few else kept)

    return replace(table, rows=[[brief(cell) for cell in line] for line in table.rows])


def _list(folders: list[Path]) -> Table:
    rows = []
    for folder in folders:
        summary, provenance, manifest = read(folder, SUMMARY, PROVENANCE, kept_rows.MANIFEST)
        cells = (
            folder.name + " (simulated)" * is_simulated(manifest),
            str(seeds(summary)),
            str(provenance["verdicts"]["ok"]),
            str(sum(provenance["refused"].values())),
            provenance["began"][:10],
            _short_commits(provenance) or "not recorded",
        )
        rows.append(row(*cells))
    columns = ["Result", "Seeds", "Runs", "Refused attempts", "Begun", "Commit"]
    return Table(title="", columns=columns, rows=rows, numeric=False)


def _tables(summary: dict[str, Any], shown_by_arm: Sequence[str]) -> list[Table]:
    chosen = _EXPERIMENTS.get(summary["experiment"], {"values": "", "ratios": ""})
    values = chosen["values"].split()
    if not points(summary):
        return [main_table(summary, shown=values or shown_by_arm, with_runs=False)]
    if values:
        return metric_tables(summary, only=values)
    limited = any(point["limits"] for point in points(summary))
    usual = bounded_metric(summary) if limited else ALL_BURSTS  # limits stand beside the gather's
    return point_tables(summary, only=chosen["ratios"].split() or [usual])


def _bare(table: Table) -> str:
    """The rows alone; notes of single cells stay."""
    lines = to_markdown(replace(table, notes=[])).splitlines()[2:]
    return "\n".join(lines).rstrip() + "\n"


def _words(summary: dict[str, Any], provenance: dict[str, Any], name: str) -> str:
    count, began = seeds(summary), provenance["began"][:10]
    spread = "95 % intervals (Student's t)"
    if count < ENOUGH_SEEDS:
        spread = "the seeds' values: too few for more than an indication"
    ended, again = (
        ", ".join(f"{count} {verdict}{what}" for verdict, count in counts.items() if count)
        for counts, what in ((provenance["verdicts"], ""), (provenance["refused"], " and repeated"))
    )
    return " ".join(
        [
            f"n = {count} seeds, {spread}.",
            *map(_sentence, provenance["remarks"]),
            f"Runs: {', '.join(filter(None, (ended, again)))}.",
            f"{_commands(provenance)} on {_processors(provenance)}, {began}; "
            f"`experiments/results/{name}/`.",
        ]
    )


def _sentence(remark: str) -> str:
    """Shorten a remark to what a table needs: that all is simulated, or paced and how."""
    whole = re.match(r"(simulated): (\d+) of \2 runs,|(paced: .*) per iteration(, chosen)", remark)
    text = (whole[1] or f"{whole[3]}{whole[4]}") if whole else remark
    return f"{text[0].upper()}{text[1:]}."


def _commands(provenance: dict[str, Any]) -> str:
    listed = [provenance["command"], *provenance.get("further_commands", [])]
    commits = _short_commits(provenance)
    of_commits = f", commit{'s' * (', ' in commits)} {commits}," if commits else ""
    return " and ".join(f"`{command}`" for command in listed) + of_commits


def _processors(provenance: dict[str, Any]) -> str:
    machines = (machine.split(", ") for machine in provenance["machine"].split("; "))
    return "; ".join(dict.fromkeys(", ".join(parts[:2]) for parts in machines))


def _short_commits(provenance: dict[str, Any]) -> str:
    return ", ".join(commit[:7] + commit[40:] for commit in provenance["commits"] if commit)


def seeds(summary: dict[str, Any]) -> int:
    # Runs of scripts and programs have no rate of iterations.
    metrics = ("rounds_per_s", "round_latency_s.mean")
    arms = summary["arms"]
    return max(entry(summary, "arms", arm, metric).n for arm in arms for metric in metrics)


def answers(results: Path) -> Table | None:
    """A row for each question whose result is kept: what of two arms is so."""
    rows = []
    for question in _rows("questions.csv"):
        folder = results / question["result"]
        if folder.is_dir():
            rows.append(row(question["asks"], *_answer(question, folder), question["result"]))
    columns = ["question", "compared", "ours", "answer", "kept result"]
    return Table(title="", columns=columns, rows=rows, numeric=False) if rows else None


def _answer(question: Mapping[str, str], folder: Path) -> list[Cell]:
    point = dict(part.split("=") for part in question["point"].split(";") if part)
    first, second, metric = (question[name] for name in ("first", "second", "metric"))
    is_ratio = metric not in TASK_METRICS
    rows = pairing.at_point(kept_rows.read(folder).per_run(), point)
    values = pairing.measured(rows, [first, second], [metric])
    pair = values.paired(first, second, metric, ratio=is_ratio)
    estimate = ratio_interval(*pair) if is_ratio else difference_interval(*pair)
    sign, unit = ("/", formatting.RATIO) if is_ratio else (" \u2212 ", formatting.POINTS)
    detail = formatting.joined(describe(metric).label, unit.symbol)
    return row(
        Cell(text=first + sign + second, detail=detail),
        rendering.measured(estimate, unit),
        _is_less(estimate, is_ratio=is_ratio),
    )


def _is_less(estimate: Estimate, *, is_ratio: bool) -> str:
    """Answer whether it is below no change; else name the least change that would be seen."""
    ends = estimate.values if estimate.n < ENOUGH_SEEDS else (estimate.low, estimate.high)
    low, high = (end([value for value in ends if value is not None]) for end in (min, max))
    least, unit = (high - low) / 2, formatting.POINTS
    if is_ratio:
        least, unit = math.sqrt(high / low) - 1, formatting.Unit("%", 100, decimals=0)
    answer = f"no difference shown ({formatting.number(least, unit)} {unit.symbol} would show)"
    if not low <= (unchanged := 1.0 if is_ratio else 0.0) <= high:
        answer = "yes" if high < unchanged else "no, the opposite"
    return f"{answer} (an indication: few seeds)" if estimate.n < ENOUGH_SEEDS else answer


# The tables of benches. A case's name is that of a `row` and then of a `column`, which may name
# another file first; a `key` is shown by a factor and with so many decimals. With two cases after
# `ratio of`, a cell is their ratio, and `{}` in a column stands for each of them.
def bench(name: str, results: Path) -> Table | None:
    """The table of a bench that has this name, if the bench is kept."""
    parts: dict[str, dict[str, str]] = {}
    for line in _rows("benches.csv"):
        if line["table"] == name:
            parts.setdefault(line["part"], {})[line["label"]] = line["value"]
    if not parts or not (results / "bench").is_dir():
        return None
    records = {
        (path.stem, record["case"]): record
        for path in (results / "bench").glob("*.json")
        for record in json.loads(path.read_text(encoding="utf-8"))
    }

    def of(head: str, tail: str) -> str:
        file, _, tail = tail.rpartition(":")
        cases = [(file or "transport", head + tail.format(loss)) for loss in parts["ratio of"]]
        return _shown(parts, [records[case] for case in cases if case in records])

    parts.setdefault("ratio of", {"": ""})
    return Table(
        title="",
        columns=["", *parts["column"]],
        rows=[
            row(label, *(of(head, tail) for tail in parts["column"].values()))
            for label, head in parts["row"].items()
        ],
    )


def _shown(parts: Mapping[str, Mapping[str, str]], cases: Sequence[Mapping[str, Any]]) -> str:
    """The text of a cell: the cases' numbers, or the reason why there are none."""
    if not cases:
        return formatting.DASH
    for case in cases:
        if case["status"] == "timeout":
            return f"> {case['limit_s']:g} s"
        if case["status"] != "ok":
            return str(case["status"].partition(":")[0])
    shown = {key: value.split() for key, value in parts["key"].items()}
    numbers = " / ".join(
        f"{case[key] * float(factor):.{decimals}f}"
        for case in cases
        for key, (factor, decimals) in shown.items()
    )
    numbers = " ".join([numbers, *parts.get("unit", {})])
    if len(parts["ratio of"]) == 1:
        return numbers
    key = next(iter(shown))
    return f"{cases[0][key] / cases[1][key]:.1f} ({numbers})"
