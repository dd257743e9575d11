"""Keeps experiments' results small enough to commit, and writes the blocks that pages have of them.

`./lab report NAME --readme` does both. `verification` recomputes what is kept and the pages.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis import formatting
from analysis.comparison import Compared, compare
from analysis.data import kept_rows
from analysis.data.evidence import Evidence, machine_text
from analysis.data.load import load
from analysis.data.metrics import (
    ALL_BURSTS,
    TASK_METRICS,
    describe,
    in_table,
    is_tail_quantile,
)
from analysis.report import remarks
from analysis.report.writing import write_report
from analysis.statistics import ENOUGH_SEEDS, Estimate, difference_interval, ratio_interval
from analysis.summary import pairing
from analysis.summary.document import json_text, summarise
from analysis.summary.lookup import bounded_metric, entry, pairs, points, ratio_names
from analysis.tables import rendering
from analysis.tables.by_arm import main_table, metric_tables
from analysis.tables.published_values import overview_table
from analysis.tables.ratios import findings_table, point_tables
from analysis.tables.rendering import (
    Cell,
    Table,
    narrowed,
    row,
    table_of,
    to_markdown,
    transposed,
)

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "experiments/results"
SUMMARY, PROVENANCE, MAIN_TABLE = "summary.json", "provenance.json", "main.md"
_SCHEMA = 2  # of provenance.json
SIMULATED = "-simulated"  # ends the name of a folder beside that of measured results
AGAIN = "keep these results again"
_FIGURES = ("ratio-along-factor.png", "learning-along-factor.png", "latency-over-rounds.png")


def keep(results_dir: Path, experiment: str | None = None, *, root: Path = ROOT) -> Path:
    """Keep an experiment's results in `experiments/results/NAME/`, in place of older ones."""
    results = load(results_dir, experiment)
    if not results.ok_runs:
        raise ValueError(f"{results_dir}: no ok run of {results.experiment}; valid: one or more")
    folder = root / RESULTS / results.experiment
    kinds = {is_simulated(run.manifest) for run in results.ok_runs}
    if kinds == {True} and _kinds(folder) == {False}:
        folder = folder.with_name(folder.name + SIMULATED)
    kinds |= _kinds(folder)
    if len(kinds) > 1:
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
    """Whether the run of this manifest was of `./lab simulate`."""
    return bool(manifest.get("simulated"))


def _kinds(folder: Path) -> set[bool]:
    """Whether what a folder keeps is simulated; empty where it keeps nothing."""
    kept = (folder / kept_rows.MANIFEST).is_file()
    return {is_simulated(read(folder, kept_rows.MANIFEST)[0])} if kept else set()


def derived(evidence: kept_rows.KeptRows) -> dict[str, str]:
    """The files that are made of kept evidence alone: their texts by name."""
    summary = summarise(evidence)
    rows = recomputable(in_table("main"), from_rounds=evidence.rounds is not None)
    shown = {left + sign + right for left, right in pairs(evidence.arms) for sign in "/-"}
    return {
        SUMMARY: json_text(_small(summary, shown)),
        PROVENANCE: json_text(_provenance(evidence, summary)),
        MAIN_TABLE: to_markdown(main_table(summary, shown=rows)),
    }


def recomputable(metrics: Sequence[str], *, from_rounds: bool) -> list[str]:
    """Those of some metrics that follow from what is kept: quantiles do where each round is."""
    return [metric for metric in metrics if from_rounds or not is_tail_quantile(metric)]


def write_derived(folder: Path) -> None:
    """Write them from the rows that a folder keeps."""
    for name, text in derived(kept_rows.read(folder)).items():
        (folder / name).write_text(text, encoding="utf-8")


def read(folder: Path, *names: str) -> list[dict[str, Any]]:
    """Documents of kept results, by default the summary."""
    return [kept_rows.document_of(folder / name, AGAIN) for name in names or (SUMMARY,)]


def _provenance(results: Evidence, summary: dict[str, Any]) -> dict[str, Any]:
    began = sorted(str(run.began_at) for run in results.runs if run.began_at)
    machines = list(dict.fromkeys(machine_text(run.manifest) for run in results.ok_runs))
    planned = {run.key for run in results.runs}
    refused = [run for run in results.others if run.key in planned and run.verdict != "ok"]
    return {
        "schema": _SCHEMA,
        "experiment": results.experiment,
        "command": results.commands[0],
        "further_commands": results.commands[1:],
        "machine": "; ".join(machines),
        "began": began[0] if began else "",
        "commits": sorted({str(run.manifest.get("commit") or "") for run in results.ok_runs}),
        "verdicts": results.verdicts(),
        "refused": dict(sorted(Counter(run.verdict for run in refused).items())),
        "remarks": remarks.cautions(results, summary),
    }


def _small(value: Any, shown: set[str], section: str = "") -> Any:
    """A summary without what no table shows, and with six digits: a small part of its size."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_small(each, shown) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _small(each, shown, name)
        for name, each in value.items()
        if not (section in ("ratios", "differences") and name not in shown)
        and not (name != "ours" and isinstance(each, dict) and each.get("value", 0) is None)
    }


def _rows(name: str) -> list[dict[str, str]]:
    """The rows of a table of this folder that says what pages show."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


# Of an experiment: whether it stands beside the paper's values, in this order; and what the tables
# of its sweep show where it is not how many times longer than the reference arm rounds took that
# were hit: ratios of other metrics, or the arms' own values.
_EXPERIMENTS = {each["experiment"]: each for each in _rows("pages.csv")}
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
    written: list[str] = []
    texts = {}
    for path in documents(root):
        texts[path], names = filled(path, root)
        written += names
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return written


def documents(root: Path) -> list[Path]:
    """The documents that may have a place for an experiment's table."""
    return [path for pattern in _DOCUMENTS for path in sorted(root.glob(pattern))]


def filled(path: Path, root: Path) -> tuple[str, list[str]]:
    """A document's text with its blocks as they are now, and their names."""
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
    """The names of the blocks that a document has a place for."""
    return re.findall(r"<!-- ([a-z0-9-]+): begin -->", text)


def _content(name: str, root: Path) -> str | None:
    try:
        return _written(name, root)
    except (LookupError, TypeError, AttributeError) as error:  # an entry that is not there
        place = root / RESULTS / name
        raise ValueError(f"{place}: {error!r} in {SUMMARY} or {PROVENANCE}; {AGAIN}") from None


def _written(name: str, root: Path) -> str | None:
    if name == "overview":
        folders = [root / RESULTS / each for each, of in _EXPERIMENTS.items() if of["replay"]]
        kept = [read(each)[0] for each in folders if (each / SUMMARY).is_file()]
        return _bare(overview_table(kept)) if kept else None
    if name == "kept":
        listed = sorted(path.parent for path in (root / RESULTS).glob(f"*/{PROVENANCE}"))
        return _bare(_list(listed)) if listed else None
    other = answers(root / RESULTS) if name == "answers" else bench(name, root / RESULTS)
    if other is not None:
        return _bare(other)
    folder = root / RESULTS / name
    if (folder / PROVENANCE).is_file():
        return block(folder)
    measured = folder.with_name(name.removesuffix(_COMPARED))
    simulated = measured.with_name(measured.name + SIMULATED)
    kept_both = all((each / PROVENANCE).is_file() for each in (measured, simulated))
    return _comparison(measured, simulated) if name.endswith(_COMPARED) and kept_both else None


def _comparison(measured: Path, simulated: Path) -> str:
    """The block that compares two folders; of those without rows nothing can be compared."""
    found = compare(kept_rows.read(measured), kept_rows.read(simulated))
    pairs = sorted({each.ratio.n for each in found})
    made = []
    for folder, kind in ((measured, "Measured"), (simulated, "Simulated")):
        provenance = read(folder, SUMMARY, PROVENANCE)[1]
        made.append(
            f"{kind}: {_commands(provenance)} "
            f"{provenance['began'][:10]}, `experiments/results/{folder.name}/`."
        )
    spread = "95 % intervals (Student's t)" if pairs[-1] >= ENOUGH_SEEDS else "each pair's ratio"
    words = (
        "Ratios, simulated over measured: geometric means over pairs of runs of one seed, with "
        f"{spread}; pairs: {', '.join(map(str, pairs))}."
    )
    shown = "\n".join(_bare(part) for part in narrowed(_compared_table(found), _WIDTH))
    return "\n".join([shown, " ".join([words, *made]), ""])


def block(folder: Path) -> str:
    """The Markdown block about the results that a folder keeps."""
    summary, provenance = read(folder, SUMMARY, PROVENANCE)
    from_rounds = (folder / kept_rows.ROUNDS).is_file()
    tables = _tables(summary, recomputable(in_table("pages"), from_rounds=from_rounds))
    # Several tables have the rows of each below what they are; the experiment's name is above all.
    titles = [f"{each.title.partition(': ')[2]}:\n\n" if tables[1:] else "" for each in tables]
    shown = "\n".join(
        title + "\n".join(_bare(part) for part in narrowed(table, _WIDTH))
        for title, table in zip(titles, tables, strict=True)
    )
    findings = findings_table(summary)
    if 0 < len(findings.rows) <= _MOST_PAIRS and not points(summary):
        parts = narrowed(transposed(findings), _WIDTH)
        shown += "".join(f"\n{_bare(part)}" for part in parts)
    papers = overview_table([summary])
    if papers.rows and _seeds(summary) >= ENOUGH_SEEDS:
        shown += f"\n{_bare(papers)}"
    return f"{shown}\n{_words(summary, provenance, folder.name)}\n"


def _list(folders: list[Path]) -> Table:
    """A row for each folder with an experiment's results."""
    names = (SUMMARY, PROVENANCE, kept_rows.MANIFEST)
    kept: list[Any] = [(folder.name, *read(folder, *names)) for folder in folders]
    return table_of(
        "",
        {
            "Result": lambda each: each[0] + " (simulated)" * is_simulated(each[3]),
            "Seeds": lambda each: str(_seeds(each[1])),
            "Runs": lambda each: str(each[2]["verdicts"]["ok"]),
            "Refused attempts": lambda each: str(sum(each[2]["refused"].values())),
            "Begun": lambda each: each[2]["began"][:10],
            "Commit": lambda each: _short_commits(each[2]) or "not recorded",
        },
        kept,
        numeric=False,
    )


def _tables(summary: dict[str, Any], shown_by_arm: Sequence[str]) -> list[Table]:
    if not points(summary):
        return [main_table(summary, shown=shown_by_arm, with_runs=False)]
    chosen = _EXPERIMENTS.get(summary["experiment"], {"values": "", "ratios": ""})
    if chosen["values"]:
        return metric_tables(summary, only=chosen["values"].split())
    shown = [ALL_BURSTS]
    if any(point["limits"] for point in points(summary)):  # they stand beside the gather's ratio
        shown = list(dict.fromkeys([bounded_metric(summary), ALL_BURSTS]))
    return point_tables(summary, only=chosen["ratios"].split() or shown)


def _bare(table: Table) -> str:
    """The rows alone; notes of single cells stay."""
    lines = to_markdown(replace(table, notes=[])).splitlines()[2:]
    return "\n".join(lines).rstrip() + "\n"


def _words(summary: dict[str, Any], provenance: dict[str, Any], name: str) -> str:
    seeds, refused = _seeds(summary), provenance["refused"]
    spread = "95 % intervals (Student's t)"
    if seeds < ENOUGH_SEEDS:
        spread = "the seeds' values, too few for more than an indication"
    ended, again = (
        ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        for counts in (provenance["verdicts"], refused)
    )
    return " ".join(
        [
            f"Means over n = {seeds} seeds with {spread}.",
            *(f"{remark[0].upper()}{remark[1:]}." for remark in provenance["remarks"]),
            f"Runs: {ended}.",
            *([f"Attempts that were refused and repeated: {again}."] if refused else []),
            f"Made by {_commands(provenance)} on {provenance['machine']}, "
            f"{provenance['began'][:10]}; all numbers and the manifest are in "
            f"`experiments/results/{name}/`.",
        ]
    )


def _commands(provenance: dict[str, Any]) -> str:
    """The command that began it, those that went on with it, and the commits."""
    listed = [provenance["command"], *provenance.get("further_commands", [])]
    commits = _short_commits(provenance)
    of_commits = f", commit{'s' * (', ' in commits)} {commits}," if commits else ""
    return " and ".join(f"`{each}`" for each in listed) + of_commits


def _short_commits(provenance: dict[str, Any]) -> str:
    return ", ".join(each[:7] + each[40:] for each in provenance["commits"] if each)


def _seeds(summary: dict[str, Any]) -> int:
    compared = ratio_names(summary)
    # Those of scripts and programs have no rate of iterations.
    metrics = ("rounds_per_s", "round_latency_s.mean")
    found = (entry(summary, "ratios", each, metric).n for each in compared for metric in metrics)
    return max(found, default=1)


def _compared_table(found: Sequence[Compared]) -> Table:
    """A row for each point and arm, a column for each metric that one of them has."""
    ratios = {(_place(each), each.metric): each.ratio for each in found}
    had = {metric for _, metric in ratios}
    shown = [metric for metric in _COMPARED_METRICS if metric in had]

    def cell(place: str, metric: str) -> Cell:
        ratio = ratios.get((place, metric))
        if ratio is None or ratio.value is None:
            return rendering.missing()
        return rendering.measured(ratio, with_n=False)

    points = list(dict.fromkeys(map(_point, found)))
    by_point = sorted(found, key=lambda each: points.index(_point(each)))
    places = dict.fromkeys(map(_place, by_point))
    return Table(
        title="",
        columns=["Ratio", *(describe(metric).label for metric in shown)],
        rows=[row(place, *(cell(place, metric) for metric in shown)) for place in places],
    )


def _point(each: Compared) -> str:
    return ", ".join(str(level) for level in each.factors.values())


def _place(each: Compared) -> str:
    return ": ".join(filter(None, (_point(each), each.arm)))


def answers(results: Path) -> Table | None:
    """A row for each question whose result is kept: what of two arms, or of the paper, is so."""
    kept = [each for each in _rows("questions.csv") if (results / each["result"]).is_dir()]
    columns = ["question", "compared", "ours", "answer", "kept result"]
    rows = [
        row(each["asks"], *_answer(each, results / each["result"]), each["result"]) for each in kept
    ]
    return Table(title="", columns=columns, rows=rows, numeric=False) if rows else None


def _answer(asked: Mapping[str, str], folder: Path) -> list[Cell]:
    """What was compared, what came out, and the answer."""
    point = dict(part.split("=") for part in asked["point"].split(";") if part)
    if asked["paper"]:
        (summary,) = read(folder)
        at = [each for each in summary["points"] if point in ({}, each["factors"])]
        published = overview_table([{**summary, "points": at}]).rows
        _, arms, paper, ours, answer = next(
            each for each in published if asked["paper"] in each[0].text
        )
        return [Cell(text=arms.text, detail=f"paper: {paper.text}"), ours, answer]
    first, second, metric = (asked[name] for name in ("first", "second", "metric"))
    is_ratio = metric not in TASK_METRICS
    rows = pairing.at_point(kept_rows.read(folder).per_run(), point)
    values = pairing.measured(rows, [first, second], [metric])
    pair = values.paired(first, second, metric, ratio=is_ratio)
    found = ratio_interval(*pair) if is_ratio else difference_interval(*pair)
    sign, unit = ("/", formatting.RATIO) if is_ratio else (" \u2212 ", formatting.POINTS)
    return row(
        Cell(
            text=first + sign + second,
            detail=formatting.joined(describe(metric).label, unit.symbol),
        ),
        rendering.measured(found, unit),
        _is_less(found, 1.0 if is_ratio else 0.0),
    )


def _is_less(estimate: Estimate, than: float) -> str:
    ends = estimate.values if estimate.n < ENOUGH_SEEDS else (estimate.low, estimate.high)
    known = [end for end in ends if end is not None]
    answer = "yes" if max(known) < than else "no" if min(known) > than else "not told apart"
    return f"{answer} (an indication: few seeds)" if estimate.n < ENOUGH_SEEDS else answer


# The tables of benches. A case's name is that of a `row` and then of a `column`, which may name
# another file first; a `key` is shown by a factor and with so many decimals. With two cases after
# `ratio of`, a cell is their ratio, and `{}` in a column stands for each of them.
def bench(name: str, results: Path) -> Table | None:
    """The table of a bench that is called so, if it is kept."""
    parts: dict[str, dict[str, str]] = {}
    for line in _rows("benches.csv"):
        if line["table"] == name:
            parts.setdefault(line["part"], {})[line["label"]] = line["value"]
    if not parts or not (results / "bench").is_dir():
        return None
    records = {
        (path.stem, each["case"]): each
        for path in (results / "bench").glob("*.json")
        for each in json.loads(path.read_text(encoding="utf-8"))
    }

    def of(head: str, tail: str) -> str:
        file, _, tail = tail.rpartition(":")
        cases = [(file or "transport", head + tail.format(each)) for each in parts["ratio of"]]
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
    """What a cell says of its cases: numbers, or why there are none."""
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
