"""Keeps an experiment's results small enough to commit, and writes README's tables from them.

    ./lab report DIR --readme
    python -m analysis.report.kept_results      (from what is kept alone)

What is kept lies in `experiments/results/NAME/`: `summary.json` (without what has no value), the
main table, the manifest of one run, `provenance.json` (command, machine, dates, verdicts) and the
headline figure. README.md, experiments/results/README.md and the pages in docs/ say where an
experiment's table goes: between `<!-- NAME: begin -->` and `<!-- NAME: end -->`; `overview` is the
table of all of them.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.data.load import Results, load
from analysis.report.writing import write_report
from analysis.statistics.intervals import ENOUGH_SEEDS
from analysis.summary.document import summarise, write_json
from analysis.summary.lookup import OWN_LIMIT, entry, pairs, points, published_entries, ratio_names
from analysis.tables import by_sweep_point
from analysis.tables.main_table import main_table
from analysis.tables.published_values import overview_table, paper_text, unit_of
from analysis.tables.rendering import Table, to_markdown
from analysis.words import cautions, formatting, headline
from analysis.words.cautions import machine_text

ROOT = Path(__file__).resolve().parents[2]
_ROWS = (
    "round_latency_s.burst_mean",
    "round_latency_s.mean",
    "round_latency_s.p95",
    "training_time_s",
    "accuracy",
    "perplexity",
    "realised_loss.gather",
    "realised_loss.broadcast",
    "passes_per_transfer",
    "bytes_sent",
)
# What the tables of a sweep show where it is not how many times longer than the reference arm
# rounds took that were hit: ratios of another metric, or the arms' own values.
_RATIOS = {"training-time": ("training_time_s",)}
_VALUES = {
    "accuracy": ("accuracy",),
    "burst-accuracy": ("accuracy",),
    "delay-lines": ("round_latency_s.calm_mean", "round_latency_s.burst_mean"),
    "fig1-phase-loss": ("accuracy",),
    "fig2-k-sweep": ("accuracy",),
}
# The experiments whose results stand beside the paper's, in the order of its tables.
_REPLAYS = (
    "burst-latency",
    "burst-accuracy",
    "training-time",
    "accuracy",
    "fig1-phase-loss",
    "fig2-k-sweep",
)
_RESULTS = "experiments/results"
_DOCUMENTS = ("README.md", "docs/**/*.md", f"{_RESULTS}/README.md")
_FIGURES = ("ratio-along-factor.png", "learning-along-factor.png", "latency-over-rounds.png")


def keep(results_dir: Path, experiment: str | None = None, *, root: Path = ROOT) -> Path:
    """Keep an experiment's results in `experiments/results/NAME/`, in place of older ones.

    Raises:
        ValueError: no results, or no ok run among them: there is nothing worth keeping.
        OSError: they cannot be written.
    """
    results = load(results_dir, experiment)
    if not results.ok_runs:
        raise ValueError(f"{results_dir}: no ok run of {results.experiment}; valid: one or more")
    report = write_report(results_dir, results.experiment)
    summary = summarise(results)
    folder = root / _RESULTS / results.experiment
    folder.mkdir(parents=True, exist_ok=True)
    shown = {left + sign + right for left, right in pairs(results.arms) for sign in "/-"}
    write_json(folder / "summary.json", _small(summary, shown))
    write_json(folder / "manifest.json", results.ok_runs[0].manifest)
    write_json(folder / "provenance.json", _provenance(results, summary))
    (folder / "main.md").write_text(to_markdown(report.main_table), encoding="utf-8")
    for path in report.figures:
        if path.name in _FIGURES:
            shutil.copyfile(path, folder / path.name)
    return folder


def write_readme(*, root: Path = ROOT) -> list[str]:
    """Write the blocks of all kept results that a document has a place for; returns their names.

    Raises:
        ValueError: a block has no end, or kept results are damaged; all documents are as before.
    """
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
    """A document's text with its blocks as they are now, and their names.

    Raises:
        ValueError: a block has no end, or kept results are damaged.
    """
    text = path.read_text(encoding="utf-8")
    written = []
    for name in re.findall(r"<!-- ([a-z0-9-]+): begin -->", text):
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


def _content(name: str, root: Path) -> str | None:
    if name == "overview":
        folders = [root / _RESULTS / each for each in _REPLAYS]
        kept = [_read(each)[0] for each in folders if (each / "summary.json").is_file()]
        return _bare(overview_table(kept)) if kept else None
    folder = root / _RESULTS / name
    return block(folder) if (folder / "provenance.json").is_file() else None


def block(folder: Path) -> str:
    """The Markdown block about the results that a folder keeps.

    Raises:
        ValueError: a file of the folder is missing or damaged.
    """
    summary, provenance = _read(folder, "summary.json", "provenance.json")
    tables = _tables(summary)
    # Several tables have the rows of each below what they are; the experiment's name is above all.
    titles = [f"{each.title.partition(': ')[2]}:\n\n" if tables[1:] else "" for each in tables]
    shown = "\n".join(title + _bare(table) for title, table in zip(titles, tables, strict=True))
    return f"{shown}\n{_words(summary, provenance, folder.name)}\n"


def _read(folder: Path, *names: str) -> list[dict[str, Any]]:
    """Documents of kept results, by default the summary."""
    documents = []
    for path in [folder / name for name in names or ("summary.json",)]:
        try:
            documents.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: {error}; keep these results again") from None
    return documents


def _tables(summary: dict[str, Any]) -> list[Table]:
    if not points(summary):
        return [main_table(summary, shown=_ROWS, with_runs=False)]
    experiment = summary["experiment"]
    if experiment in _VALUES:
        return by_sweep_point.metric_tables(summary, only=_VALUES[experiment])
    ratios = _RATIOS.get(experiment, ("round_latency_s.burst_mean",))
    return by_sweep_point.ratio_tables(summary, only=ratios)


def _bare(table: Table) -> str:
    """The rows alone; notes of single cells stay."""
    lines = to_markdown(replace(table, notes=[])).splitlines()[2:]
    return "\n".join(lines).rstrip() + "\n"


def _words(summary: dict[str, Any], provenance: dict[str, Any], name: str) -> str:
    compared = ratio_names(summary)
    seeds = max((entry(summary, "ratios", each, "rounds_per_s").n for each in compared), default=1)
    few = "" if seeds >= ENOUGH_SEEDS else ", too few for more than an indication"
    verdicts = provenance["verdicts"].items()
    listed = ", ".join(f"{count} {verdict}" for verdict, count in verdicts if count)
    found = headline.sentences(summary)[:1] if not points(summary) else []
    return " ".join(
        [
            f"Means over n = {seeds} seeds with 95 % bootstrap intervals{few}.",
            *found,
            *_beside_the_paper(summary),
            *provenance["remarks"],
            f"Runs: {listed}. Made by `{provenance['command']}` on {provenance['machine']}, "
            f"{provenance['began'][:10]}; all numbers and the manifest are in "
            f"`experiments/results/{name}/`.",
        ]
    )


def _beside_the_paper(summary: dict[str, Any]) -> list[str]:
    """For each of the paper's values: at how many points it lies inside our interval."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _, _, each in published_entries(summary):
        if each["confidence"] != OWN_LIMIT and each["inside_our_interval"] is not None:
            found.setdefault(each["id"], []).append(each)
    return [_agreement(entries) for entries in found.values()]


def _agreement(entries: list[dict[str, Any]]) -> str:
    first = entries[0]
    unit = unit_of(first)
    inside = sum(each["inside_our_interval"] for each in entries)
    if len(entries) == 1:
        where = "inside our interval" if inside else "not inside our interval"
    else:
        where = f"inside our interval in {inside} of {len(entries)} comparisons"
    return (
        f"{first['title']}: the paper has {paper_text(first, unit)} {unit.symbol} "
        f"({first['source']}), {where}."
    )


def _provenance(results: Results, summary: dict[str, Any]) -> dict[str, Any]:
    began = sorted(str(run.began_at) for run in results.runs if run.began_at)
    machines = list(dict.fromkeys(machine_text(run.manifest) for run in results.ok_runs))
    return {
        "schema": 1,
        "experiment": results.experiment,
        "command": re.sub(r" --out \S+", "", "; ".join(results.commands)),
        "machine": "; ".join(machines),
        "began": began[0] if began else "",
        "verdicts": results.verdicts(),
        "remarks": cautions.sentences(results, summary),
    }


def _small(value: Any, shown: set[str], section: str = "") -> Any:
    """A summary without what no table shows, and with six digits: a small part of its size.

    Only ratios and differences in `shown` stay, and only measured entries that have a value.
    """
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


def main(words: list[str]) -> None:
    """The command line: [DIR [EXPERIMENT]], the results to keep first; then README is written."""
    if words:
        print(keep(Path(words[0]), words[1] if len(words) > 1 else None))
    print("written:", ", ".join(write_readme()) or formatting.DASH)


if __name__ == "__main__":
    main(sys.argv[1:])
