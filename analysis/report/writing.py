"""Writes an experiment's report: page, `summary.json`, tables and figures, all or nothing."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.data import gates, kept_measures, run_directories
from analysis.data.evidence import INVALID_INCLUDED
from analysis.data.load import Results, load
from analysis.data.metrics import METRICS, describe
from analysis.figures import catalogue
from analysis.report import index
from analysis.report.folder import FOLDER, SUMMARY, replaced
from analysis.report.html import inline_svg, render, to_html
from analysis.report.timeline import FILE as TIMELINE
from analysis.report.timeline import Page, timeline_page
from analysis.summary.document import summarise, write_json
from analysis.summary.lookup import entry, of_programs
from analysis.tables import by_sweep_point, setup, verdicts
from analysis.tables.by_sweep_point import contrast_table
from analysis.tables.critical_path import culprits_table, parts_table
from analysis.tables.critical_rounds import critical_rounds_table, layer_loss_table
from analysis.tables.every_run import every_run_table
from analysis.tables.main_table import main_table
from analysis.tables.published_values import experiment_table
from analysis.tables.ratios import ratio_table
from analysis.tables.rendering import Table, marked, to_csv, to_latex, to_markdown
from analysis.tables.setup import program_table
from analysis.words import cautions, headline, methods

_FORMATS = {".md": to_markdown, ".csv": to_csv, ".tex": to_latex}
_FEW_RUNS = 24  # more are folded away on the page, those that are not ok excepted


@dataclass(frozen=True, kw_only=True)
class ReportPaths:
    """The files that `write_report` wrote, the main table, and what to know before its numbers.

    `overview` is the index of the reports of all experiments. `resumable`: some run is not ok, and
    may be at another attempt. `beyond_limits`: the gates that made runs invalid, by key, each with
    its worst value and limit in words. `invalid_included`: how many invalid runs the numbers are
    of, too. `damaged`: for each run whose logs are not whole, its key and what is
    wrong with them.
    """

    index: Path
    overview: Path
    summary: Path
    tables: list[Path]
    figures: list[Path]
    experiment: str
    verdicts: dict[str, int]
    main_table: Table
    cautions: list[str]
    damaged: list[tuple[str, list[str]]]
    resumable: bool
    beyond_limits: dict[str, str]
    invalid_included: int


def write_report(
    results_dir: Path,
    experiment: str | None = None,
    *,
    include_invalid: bool = False,
) -> ReportPaths:
    """Write an experiment's report, in place of an older one; see `analysis.write_report`."""
    results = load(results_dir, experiment, include_invalid=include_invalid)
    if not results.invalid_included:
        with contextlib.suppress(OSError):  # it would only save time
            kept_measures.keep(results.folder, results.measured)
    summary = summarise(results)
    summary["cautions"] = cautions.lines(results, summary)
    timeline = timeline_page(results)
    tables = _tables(results, summary)
    tables["per-run"] = every_run_table(results, timeline.keys if timeline else ())
    if results.invalid_included:
        tables = {name: marked(table, INVALID_INCLUDED) for name, table in tables.items()}
    drawings = catalogue.draw_all(results, summary)
    page = render_page(results, summary, tables, drawings, timeline=timeline)

    folder = results.folder / FOLDER
    with replaced(folder) as new:
        (new / "index.html").write_text(page, encoding="utf-8")
        if timeline is not None:
            (new / TIMELINE).write_text(timeline.text, encoding="utf-8")
        write_json(new / SUMMARY, summary)
        for name, table in tables.items():
            for suffix, text_of in _FORMATS.items():
                (new / f"{name}{suffix}").write_text(text_of(table), encoding="utf-8")
        for drawing in drawings:
            (new / f"{drawing.name}.svg").write_text(drawing.svg, encoding="utf-8")
            (new / f"{drawing.name}.png").write_bytes(drawing.png)
    is_run = (
        results.folder / run_directories.CONFIG
    ).is_file()  # alone: what lies beside is not ours
    overview = None if is_run else index.write(results.results_dir)
    return ReportPaths(
        index=folder / "index.html",
        overview=overview or folder / "index.html",
        summary=folder / SUMMARY,
        tables=[folder / f"{name}{suffix}" for name in tables for suffix in _FORMATS],
        figures=[folder / f"{each.name}.{kind}" for each in drawings for kind in ("svg", "png")],
        experiment=results.experiment,
        verdicts=summary["verdicts"],
        main_table=tables["main"],
        cautions=summary["cautions"],
        damaged=_damaged(results),
        resumable=_resumable(results),
        beyond_limits=gates.beyond_limits(results.runs),
        invalid_included=results.invalid_included,
    )


def _damaged(results: Results) -> list[tuple[str, list[str]]]:
    return [(run.key, run.problems) for run in (*results.runs, *results.others) if run.problems]


def _resumable(results: Results) -> bool:
    return any(
        gates.another_attempt_may_help(run) and not run.config.get("simulated")
        for run in results.runs
    )


def _tables(results: Results, summary: dict[str, Any]) -> dict[str, Table]:
    """Every table of the report by the name of its files."""
    by_point = by_sweep_point.metric_tables(summary)
    ratios_by_point = by_sweep_point.ratio_tables(summary)
    return {
        "main": main_table(summary),
        "ratios": ratio_table(summary),
        "phases": critical_rounds_table(summary),
        "critical-path": parts_table(results),
        "waited-for": culprits_table(results),
        "published": experiment_table(summary),
        "impairments": setup.impairment_table(results),
        "links": setup.link_table(results),
        "runs": verdicts.all_runs_table(results),
        "not-ok": verdicts.not_ok_table(results),
        "gates": verdicts.gate_table(results),
        **{f"point-{number}": table for number, table in enumerate(by_point, start=1)},
        **{f"point-ratios-{number}": each for number, each in enumerate(ratios_by_point, start=1)},
        "contrasts": contrast_table(summary),
        "layers": layer_loss_table(results.experiment, results.layer_loss, results.arms),
        "arms": (program_table if results.runs_programs else setup.arm_settings_table)(results),
        "host_cpu": setup.host_cpu_table(results),
        "coverage": verdicts.coverage_table(results),
    }


def render_page(
    results: Results,
    summary: dict[str, Any],
    tables: dict[str, Table],
    drawings: list[catalogue.Drawing],
    *,
    timeline: Page | None,
) -> str:
    """The HTML page: it loads nothing, so it can be opened offline and sent to others."""
    folder = shlex.quote(_as_given(results.folder))
    return render(
        "report.html.j2",
        results=results,
        mark=INVALID_INCLUDED if results.invalid_included else "",
        verdicts=summary["verdicts"],
        planned=len(results.runs),
        headline=headline.lines(summary),
        cautions=summary["cautions"],
        methods=methods.rows(results),
        settings=summary["settings"],
        # What is most asked for comes first, the rest is folded away.
        point_tables=[
            to_html(tables[name], name)
            for name in sorted(
                (name for name in tables if name.startswith("point-") and results.ok_runs),
                key=lambda name: (name not in ("point-ratios-1", "point-1"), name),
            )
        ],
        resumable=_resumable(results),
        many=len(results.runs) > _FEW_RUNS,
        tables={name: to_html(table, name) for name, table in tables.items()},
        has={name: bool(table.rows) for name, table in tables.items()},
        machines=[to_html(table) for table in setup.machine_tables(results)],
        definitions=_definitions(summary),
        timeline=TIMELINE if timeline else None,
        drawings=[
            (each, inline_svg(each.svg, name=each.name, description=each.title))
            for each in drawings
        ],
        problems=_damaged(results),
        began=sorted(str(run.began_at) for run in results.runs if run.began_at),
        left_out=results.left_out,
        folder=folder,
        report_command=f"./lab report {folder}",
    )


def _definitions(summary: dict[str, Any]) -> list[Any]:
    """The metrics to explain: of programs those that an arm has."""
    arms = summary["arms"]
    programs = of_programs(arms)
    known = [
        metric
        for metric in METRICS
        if not programs or any(entry(summary, "arms", arm, metric.name).n for arm in arms)
    ]
    return [*known, *map(describe, programs)]


def _as_given(folder: Path) -> str:
    """The folder relative to where the command was given, if it lies below."""
    try:
        return str(folder.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
