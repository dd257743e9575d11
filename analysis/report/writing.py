"""Writes an experiment's report: page, `summary.json`, tables and figures, all or nothing."""

from __future__ import annotations

import csv
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from analysis.data import evidence
from analysis.data.evidence import INVALID_INCLUDED
from analysis.data.load import CONFIG, Results, load
from analysis.data.logs import read_document
from analysis.data.metrics import METRICS, describe
from analysis.figures import along_factor, rounds, style
from analysis.report import remarks
from analysis.report.html import FOLDER, SUMMARY, inline_svg, render, replaced, to_html
from analysis.report.timeline import FILE as TIMELINE
from analysis.report.timeline import timeline_page
from analysis.summary.document import json_text, summarise
from analysis.summary.lookup import entry, of_programs
from analysis.tables import by_arm, published_values, ratios, setup, verdicts
from analysis.tables.rendering import Cell, Table, marked, table_of, to_csv, to_latex, to_markdown

_FORMATS = {".md": to_markdown, ".csv": to_csv, ".tex": to_latex}
_FEW_RUNS = 24  # more are folded away on the page, those that are not ok excepted
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
    beyond_limits: dict[str, str]  # gates that made runs invalid: the worst value and the limit
    invalid_included: int  # how many invalid runs the numbers are of, too


@dataclass(frozen=True, kw_only=True)
class Drawing:
    name: str
    title: str
    caption: str
    svg: str
    png: bytes


def write_report(
    results_dir: Path,
    experiment: str | None = None,
    *,
    include_invalid: bool = False,
) -> ReportPaths:
    """Write an experiment's report, in place of an older one; see `analysis.write_report`."""
    results = load(results_dir, experiment, include_invalid=include_invalid)
    summary = summarise(results)
    summary["cautions"] = remarks.cautions(results, summary)
    timeline, in_timeline = timeline_page(results)
    tables = _tables(results, summary)
    tables["per-run"] = verdicts.every_run_table(results, in_timeline)
    if results.invalid_included:
        tables = {name: marked(table) for name, table in tables.items()}
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
        figures=[folder / f"{each.name}.{kind}" for each in drawings for kind in ("svg", "png")],
        experiment=results.experiment,
        verdicts=summary["verdicts"],
        main_table=tables["main"],
        cautions=summary["cautions"],
        damaged=_damaged(results),
        resumable=_resumable(results),
        beyond_limits=evidence.beyond_limits(results.runs),
        invalid_included=results.invalid_included,
    )


def _damaged(results: Results) -> list[tuple[str, list[str]]]:
    return [(run.key, run.problems) for run in (*results.runs, *results.others) if run.problems]


def _resumable(results: Results) -> bool:
    return any(
        evidence.another_attempt_may_help(run) and not run.config.get("simulated")
        for run in results.runs
    )


def _tables(results: Results, summary: dict[str, Any]) -> dict[str, Table]:
    arms_table = setup.program_table if results.runs_programs else setup.arm_settings_table
    by_point, ratios_by_point = by_arm.metric_tables(summary), ratios.point_tables(summary)
    return {
        "main": by_arm.main_table(summary),
        "ratios": ratios.ratio_table(summary),
        "phases": by_arm.critical_rounds_table(summary),
        "round-time": by_arm.round_time_table(results),
        "published": published_values.experiment_table(summary),
        "impairments": setup.impairment_table(results),
        "links": setup.link_table(results),
        "runs": verdicts.run_table(results),
        "not-ok": verdicts.run_table(results, not_ok=True),
        "gates": verdicts.gate_table(results),
        **{f"point-{number}": table for number, table in enumerate(by_point, start=1)},
        **{
            f"point-ratios-{number}": ratio for number, ratio in enumerate(ratios_by_point, start=1)
        },
        "contrasts": ratios.contrast_table(summary),
        "arms": arms_table(results),
    }


def draw_all(results: Results, summary: dict[str, Any]) -> list[Drawing]:
    """Every figure for which there are data, rendered; the same input gives the same bytes."""
    kinds: dict[str, str] = {}
    for run in results.ok_runs:
        kinds |= evidence.impairment_kinds(run.config)
    styles = style.arm_styles(results.arms)
    tasks = {run.key: evidence.task(run.config) for run in results.ok_runs}
    frame = results.frame
    makers: dict[str, Callable[[], Figure | None]] = {
        "latency-over-rounds": lambda: rounds.over_rounds(frame("latencies"), styles, kinds),
        "latency-cdf": lambda: rounds.distribution(frame("latencies"), styles),
        "loss-over-rounds": lambda: rounds.share(
            frame("gathered_loss"),
            styles,
            "loss",
            "Realised loss, gather (%)",
            (frame("latencies"), kinds),
        ),
        "ratio-along-factor": lambda: along_factor.ratios_along_factor(summary, styles),
        "{quality}-over-time": lambda: rounds.quality(
            frame("evaluations"), styles, "elapsed_s", tasks
        ),
        "{quality}-over-rounds": lambda: rounds.quality(
            frame("evaluations"), styles, "round", tasks
        ),
        "learning-along-factor": lambda: along_factor.learning_along_factor(summary, styles),
        "gradient-error": lambda: rounds.share(
            frame("deviations"),
            styles,
            "relative_error.applied",
            "Relative error of the\napplied gradient (%)",
        ),
        "divergence": lambda: rounds.share(
            frame("deviations"), styles, "divergence", "Divergence of replicas (%)"
        ),
    }
    words, drawings = _words(results, summary, set(tasks.values())), []
    with style.settings():
        for line in csv.DictReader(_CAPTIONS.read_text(encoding="utf-8").splitlines()):
            if (figure := makers[line["name"]]()) is not None:
                if results.invalid_included:
                    style.watermark(figure)
                svg, png = style.render(figure, "svg").decode(), style.render(figure, "png")
                texts = {
                    name: " ".join(text.format(**words).split()) for name, text in line.items()
                }
                drawings.append(Drawing(**texts, svg=svg, png=png))
    return drawings


def _words(results: Results, summary: dict[str, Any], tasks: set[str]) -> dict[str, str]:
    band = "A pale band spans lowest to highest run."
    many = style.too_many_for_bands(results.arms)
    programs = results.runs_programs
    return {
        "quality": summary.get("task_metric") or "accuracy",
        "band": band,
        "band_of_loss": "" if many else band,
        "each_arm": "Each arm has a panel. " if many else "",
        "apart": "Each task has a panel. " if len(tasks) > 1 else "",
        "of_round": "Each round as programs marked it" if programs else "Gather plus broadcast",
    }


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
    findings = ratios.findings_table(summary)
    if results.invalid_included:
        findings = marked(findings)
    return render(
        "report.html.j2",
        results=results,
        mark=INVALID_INCLUDED if results.invalid_included else "",
        verdicts=summary["verdicts"],
        planned=len(results.runs),
        findings=findings,
        found=to_html(findings),
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
        many=len(results.runs) > _FEW_RUNS,
        tables={name: to_html(table, name) for name, table in tables.items()},
        has={name: bool(table.rows) for name, table in tables.items()},
        machine=to_html(setup.machine_table(results), sortable=True) if results.ok_runs else "",
        definitions=_definitions(summary),
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
    last = max(reported, key=lambda each: (each / FOLDER / SUMMARY).stat().st_mtime_ns)
    with replaced(folder) as new:
        (new / "index.html").write_text(page, encoding="utf-8")
        shutil.copyfile(last / FOLDER / SUMMARY, new / SUMMARY)
    return folder / "index.html"


def _index_table(experiments: list[Path]) -> Table:
    summaries = {each: read_document(each / FOLDER / SUMMARY, []) for each in experiments}
    documents = {each: read_document(each / "experiment.json", []) for each in experiments}

    def name(experiment: Path) -> Cell:
        described = documents[experiment].get("description") or ""
        href = f"../{experiment.name}/{FOLDER}/index.html" if summaries[experiment] else ""
        return Cell(text=experiment.name, detail=described, href=href)

    def runs(experiment: Path) -> Cell:
        if not (summary := summaries[experiment]):
            return Cell(text="no report yet", tone="quiet")
        verdicts = {name: count for name, count in summary["verdicts"].items() if count}
        tone = "good" if set(verdicts) <= {"ok"} else "bad"
        return Cell(text=", ".join(f"{n} {name}" for name, n in verdicts.items()), tone=tone)

    def written(experiment: Path) -> str | None:
        if not summaries[experiment]:
            return None
        at_s = (experiment / FOLDER / "index.html").stat().st_mtime
        return datetime.fromtimestamp(at_s).strftime("%Y-%m-%d %H:%M")

    return table_of(
        "One row for each experiment; its name leads to its report",
        {
            "Experiment": name,
            "Arms": lambda each: ", ".join((summaries[each] or documents[each]).get("arms") or []),
            "Runs": runs,
            "What was found": lambda each: (
                ratios.first_finding(summaries[each]) if summaries[each] else None
            ),
            "Report of": written,
        },
        experiments,
        numeric=False,
    )
