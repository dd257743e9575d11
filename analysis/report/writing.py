"""Writes an experiment's report: page, `summary.json`, tables and figures, all or nothing."""

from __future__ import annotations

import csv
import shlex
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from analysis.data import evidence
from analysis.data.load import CONFIG, Results, load
from analysis.data.logs import read_document
from analysis.data.metrics import METRICS, describe
from analysis.figures import along_factor, rounds, style
from analysis.report import remarks
from analysis.report.html import FOLDER, SUMMARY, inline_svg, render, replaced, to_html
from analysis.report.timeline import FILE as TIMELINE
from analysis.report.timeline import timeline_page
from analysis.summary.document import json_text, summarise
from analysis.summary.lookup import entry, of_programs, points
from analysis.tables import by_arm, claims, ratios, setup, verdicts
from analysis.tables.rendering import Cell, Table, row, to_csv, to_latex, to_markdown

_FORMATS = {".md": to_markdown, ".csv": to_csv, ".tex": to_latex}
PAGE = f"{FOLDER}/index.html"  # in an experiment's folder
_CAPTIONS = Path(__file__).with_name("captions.csv")


@dataclass(frozen=True, kw_only=True)
class ReportPaths:
    """The files that `write_report` wrote, the main table, and what to know before its numbers."""

    index: Path
    overview: Path  # the index of the reports of all experiments
    summary: Path
    tables: list[Path]
    figures: list[Path]
    experiment: str
    verdicts: dict[str, int]
    main_table: Table
    cautions: list[str]
    damaged: list[tuple[str, list[str]]]  # runs whose logs are not whole: key, what is wrong
    resumable: bool  # some run is not ok, and may be at another attempt


@dataclass(frozen=True, kw_only=True)
class Drawing:
    name: str
    title: str
    caption: str
    svg: str
    png: bytes


def write_report(results_dir: Path, experiment: str | None = None) -> ReportPaths:
    results = load(results_dir, experiment)
    summary = summarise(results)
    summary["cautions"] = remarks.cautions(results, summary)
    timeline, in_timeline = timeline_page(results)
    tables = _tables(results, summary)
    tables["per-run"] = verdicts.every_run_table(results, in_timeline)
    drawings = draw_all(results, summary)
    page = render_page(results, summary, tables, drawings, has_timeline=bool(timeline))

    folder = results.folder / FOLDER
    with replaced(folder) as new:
        (new / "index.html").write_text(page, encoding="utf-8")
        if timeline:
            (new / TIMELINE).write_text(timeline, encoding="utf-8")
        (new / SUMMARY).write_text(json_text(summary), encoding="utf-8")
        for name, table in tables.items():
            for suffix, text_of in _FORMATS.items():
                (new / f"{name}{suffix}").write_text(text_of(table), encoding="utf-8")
        for drawing in drawings:
            (new / f"{drawing.name}.svg").write_text(drawing.svg, encoding="utf-8")
            (new / f"{drawing.name}.png").write_bytes(drawing.png)
    is_alone = (results.folder / CONFIG).is_file()  # what lies beside is not ours
    overview = None if is_alone else write_index(results.results_dir)
    return ReportPaths(
        index=folder / "index.html",
        overview=overview or folder / "index.html",
        summary=folder / SUMMARY,
        tables=[folder / f"{name}{suffix}" for name in tables for suffix in _FORMATS],
        figures=[folder / f"{d.name}.{kind}" for d in drawings for kind in ("svg", "png")],
        experiment=results.experiment,
        verdicts=summary["verdicts"],
        main_table=tables["main"],
        cautions=summary["cautions"],
        damaged=_damaged(results),
        resumable=_resumable(results),
    )


def _damaged(results: Results) -> list[tuple[str, list[str]]]:
    return [(run.key, run.problems) for run in (*results.runs, *results.others) if run.problems]


def _resumable(results: Results) -> bool:
    """Tell whether a command can repeat a run that is not ok, and may end otherwise."""
    for run in results.runs:
        stopping = [gate for gate in run.gates if evidence.stops(gate)]
        repeats = bool(stopping) and all(gate.get("repeats") is True for gate in stopping)
        by_command = not (evidence.is_of_script(run.config) or run.config.get("simulated"))
        if run.verdict != "ok" and by_command and not repeats:
            return True
    return False


def _tables(results: Results, summary: dict[str, Any]) -> dict[str, Table]:
    arms_table = setup.program_table if results.runs_programs else setup.arm_settings_table
    by_point, ratio_tables = by_arm.metric_tables(summary), ratios.point_tables(summary)
    return {
        "main": by_arm.main_table(summary),
        "ratios": ratios.ratio_table(summary),
        "phases": by_arm.critical_rounds_table(summary),
        "round-time": by_arm.round_time_table(results),
        "published": claims.experiment_table(summary),
        "impairments": setup.impairment_table(results),
        "links": setup.link_table(results),
        "runs": verdicts.run_table(results),
        "not-ok": verdicts.run_table(results, not_ok=True),
        "gates": verdicts.gate_table(results),
        **{f"point-{number}": table for number, table in enumerate(by_point, start=1)},
        **{f"point-ratios-{number}": table for number, table in enumerate(ratio_tables, start=1)},
        "contrasts": ratios.contrast_table(summary),
        "arms": arms_table(results),
    }


def draw_all(results: Results, summary: dict[str, Any]) -> list[Drawing]:
    kinds: dict[str, str] = {}
    for run in results.ok_runs:
        kinds |= evidence.impairment_kinds(run.config)
    styles = style.arm_styles(results.arms)
    tasks = {run.key: evidence.task(run.config) for run in results.ok_runs}
    latencies, losses, evaluations, deviations = map(
        results.frame, ("latencies", "gathered_loss", "evaluations", "deviations")
    )
    band, many = "A pale band spans lowest to highest run.", style.too_many_for_bands(results.arms)
    texts = {
        "quality": summary.get("task_metric") or "accuracy",
        "band": band,
        "band_of_loss": "" if many else band,
        "each_arm": "Each arm has a panel. " if many else "",
        "apart": "Each task has a panel. " if len(set(tasks.values())) > 1 else "",
        "of_round": "Each round as programs marked it"
        if results.runs_programs
        else "Gather plus broadcast",
        "realised_loss": describe("realised_loss.gather").meaning,
        "runs": "the ok runs of all points of the sweep" if points(summary) else "the ok runs",
    }
    drawings = []
    with style.settings():
        figures = {
            "latency-over-rounds": rounds.over_rounds(latencies, styles, kinds),
            "latency-cdf": rounds.distribution(latencies, styles),
            "loss-over-rounds": rounds.share(
                losses, styles, "loss", "Realised loss, gather (%)", (latencies, kinds)
            ),
            "ratio-along-factor": along_factor.ratios_along_factor(summary, styles),
            "{quality}-over-time": rounds.quality(evaluations, styles, "elapsed_s", tasks),
            "{quality}-over-rounds": rounds.quality(evaluations, styles, "round", tasks),
            "learning-along-factor": along_factor.learning_along_factor(summary, styles),
            "gradient-error": rounds.share(
                deviations,
                styles,
                "relative_error.applied",
                "Relative error of the\napplied gradient (%)",
            ),
            "divergence": rounds.share(
                deviations, styles, "divergence", "Divergence of replicas (%)"
            ),
        }
        for line in csv.DictReader(_CAPTIONS.read_text(encoding="utf-8").splitlines()):
            if (figure := figures[line["name"]]) is not None:
                svg, png = style.render(figure, "svg").decode(), style.render(figure, "png")
                words = {key: " ".join(text.format(**texts).split()) for key, text in line.items()}
                drawings.append(Drawing(**words, svg=svg, png=png))
    return drawings


def render_page(
    results: Results,
    summary: dict[str, Any],
    tables: dict[str, Table],
    drawings: list[Drawing],
    *,
    has_timeline: bool,
) -> str:
    """The HTML page: it loads nothing, so it can be opened offline and sent to others."""
    place = results.folder.resolve()
    below = place.is_relative_to(Path.cwd())
    folder = shlex.quote(str(place.relative_to(Path.cwd()) if below else place))
    arms = summary["arms"]
    programs, findings = of_programs(arms), ratios.findings_table(summary)
    return render(
        "report.html.j2",
        results=results,
        verdicts=summary["verdicts"],
        planned=len(results.runs),
        findings=findings,
        findings_table=to_html(findings),
        cautions=summary["cautions"],
        methods=remarks.methods(results),
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
        tables={name: to_html(table, name) for name, table in tables.items()},
        has={name: bool(table.rows) for name, table in tables.items()},
        machine=to_html(setup.machine_table(results), sortable=True) if results.ok_runs else "",
        # Of the metrics of programs those that an arm has.
        definitions=[
            metric
            for metric in [*METRICS, *map(describe, programs)]
            if not programs or any(entry(summary, "arms", arm, metric.name).n for arm in arms)
        ],
        timeline=TIMELINE if has_timeline else None,
        drawings=[
            (drawing, inline_svg(drawing.svg, name=drawing.name, description=drawing.title))
            for drawing in drawings
        ],
        problems=_damaged(results),
        began=sorted(str(run.began_at) for run in results.runs if run.began_at),
        left_out=results.left_out,
        folder=folder,
        report_command=f"./lab report {folder}",
    )


def write_index(results_dir: Path) -> Path | None:
    """Write `results_dir/report/index.html`; without any experiment, remove what is there."""
    folder = results_dir / FOLDER
    reported = [path.parents[1] for path in results_dir.glob(f"*/{FOLDER}/{SUMMARY}")]
    planned = [path.parent for path in results_dir.glob("*/plan.json")]
    if not reported:
        if (folder / SUMMARY).is_file():  # ours
            shutil.rmtree(folder)
        return None
    table = _index_table(sorted({*reported, *planned}))
    page = render("index.html.j2", table=to_html(table, sortable=True), place=str(results_dir))
    last = max(reported, key=lambda folder: (folder / FOLDER / SUMMARY).stat().st_mtime_ns)
    with replaced(folder) as new:
        (new / "index.html").write_text(page, encoding="utf-8")
        shutil.copyfile(last / FOLDER / SUMMARY, new / SUMMARY)
    return folder / "index.html"


def _index_table(experiments: list[Path]) -> Table:
    rows = []
    for experiment in experiments:
        summary = read_document(experiment / FOLDER / SUMMARY, [])
        document = read_document(experiment / "experiment.json", [])
        href = finding = written = ""
        runs = Cell(text="no report yet", tone="quiet")
        if summary:
            href, finding = f"../{experiment.name}/{PAGE}", ratios.first_finding(summary)
            at_s = (experiment / PAGE).stat().st_mtime
            written = datetime.fromtimestamp(at_s).strftime("%Y-%m-%d %H:%M")
            counts = {name: count for name, count in summary["verdicts"].items() if count}
            text = ", ".join(f"{count} {name}" for name, count in counts.items())
            runs = Cell(text=text, tone="good" if set(counts) <= {"ok"} else "bad")
        name = Cell(text=experiment.name, detail=document.get("description") or "", href=href)
        arms = ", ".join((summary or document).get("arms") or [])
        rows.append(row(name, arms, runs, finding, written))
    return Table(
        title="One row for each experiment; its name leads to its report",
        columns=["Experiment", "Arms", "Runs", "What was found", "Report of"],
        rows=rows,
        numeric=False,
    )
