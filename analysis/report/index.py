"""Writes the index of the reports in a folder of results, from the summary that each report has."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

from analysis.data.records import read_document
from analysis.report.folder import FOLDER, SUMMARY, replaced
from analysis.report.html import render, to_html
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting, headline

_FEW = "no report yet"


def write(results_dir: Path) -> Path | None:
    """Write `results_dir/report/index.html`; without any experiment, remove what is there."""
    folder = results_dir / FOLDER
    reported = [path.parents[1] for path in results_dir.glob(f"*/{FOLDER}/{SUMMARY}")]
    planned = [path.parent for path in results_dir.glob("*/plan.json")]
    experiments = sorted({*reported, *planned})
    if not reported:
        if (folder / SUMMARY).is_file():  # ours
            shutil.rmtree(folder)
        return None
    page = render(
        "index.html.j2", table=to_html(_table(experiments), sortable=True), place=str(results_dir)
    )
    last = max(reported, key=lambda each: (each / FOLDER / SUMMARY).stat().st_mtime_ns)
    with replaced(folder) as new:
        (new / "index.html").write_text(page, encoding="utf-8")
        shutil.copyfile(last / FOLDER / SUMMARY, new / SUMMARY)
    return folder / "index.html"


def _table(experiments: list[Path]) -> Table:
    return Table(
        title="One row for each experiment; its name leads to its report",
        columns=["Experiment", "Arms", "Runs", "What was found", "Report of"],
        rows=[_row(each) for each in experiments],
        numeric=False,
    )


def _row(experiment: Path) -> list[Cell]:
    document, summary = (
        read_document(experiment / name, []) for name in ("experiment.json", f"{FOLDER}/{SUMMARY}")
    )
    described = str(document.get("description") or "")
    if not summary:
        arms = ", ".join(map(str, document.get("arms") or []))
        return row(
            Cell(text=experiment.name, detail=described),
            *(arms, Cell(text=_FEW, tone="quiet"), formatting.DASH, formatting.DASH),
        )
    verdicts = {name: count for name, count in summary["verdicts"].items() if count}
    page = experiment / FOLDER / "index.html"
    ok = set(verdicts) <= {"ok"}
    return row(
        Cell(
            text=experiment.name,
            detail=described,
            href=f"../{experiment.name}/{FOLDER}/index.html",
        ),
        ", ".join(summary["arms"]),
        Cell(
            text=", ".join(f"{count} {name}" for name, count in verdicts.items()),
            tone="good" if ok else "bad",
        ),
        headline.lines(summary)[0],
        datetime.fromtimestamp(page.stat().st_mtime).strftime("%Y-%m-%d %H:%M"),
    )
