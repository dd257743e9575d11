"""The papers' numbers as data, and beside ours: other models say so, and tasks stand apart."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.data import metrics
from analysis.data.load import load
from analysis.figures import rounds
from analysis.figures.style import arm_styles
from analysis.summary import claims
from analysis.summary.document import summarise
from analysis.summary.lookup import entry
from analysis.tables import ratios
from analysis.tables.by_arm import main_table
from analysis.tables.claims import Kept, claims_table, experiment_table, verdicts_table
from analysis.tables.rendering import Cell
from tests.analysis.build import ResultsBuilder

RESNET = "D14"


def beside(folder: Path, published: str, **options: Any) -> dict[str, Any]:
    build = ResultsBuilder(folder)
    build.published = [published]
    for arm in ("dblp", "fixed-low"):
        for seed in range(1, 6):
            pace = options.get("pace", {"kind": "real"})
            training = {"model": "resnet50", "dataset": "digits", "pace": pace}
            build.run(arm=arm, seed=seed, config={"training": training}, **options)
    return summarise(load(folder))


def rows_of(summary: dict[str, Any], claim: str) -> list[list[Cell]]:
    kept = Kept(summary=summary, simulated=False, wall_s={"dblp": 90.0, "fixed-low": 30.0})
    first, *others = itertools.dropwhile(
        lambda row: not row[0].text.startswith(f"{claim}:"), claims_table([kept]).rows
    )
    # A further result of the same claim leaves its cell empty.
    return [first, *itertools.takewhile(lambda row: not row[0].text, others)]


def numbers(summary: dict[str, Any]) -> list[str]:
    _, ours, paper, *_ = experiment_table(summary).rows[0]
    _, papers, our, *_ = rows_of(summary, RESNET)[0]
    return [f"{cell.text} ({cell.detail})" for cell in (ours, paper, our, papers)]


def test_the_papers_own_model_needs_no_word(tmp_path):
    shown = numbers(beside(tmp_path, RESNET))
    assert shown[2:] == [
        "0.00 points (0.00\u20130.00, n = 5)",
        "-0.48 points (at most, and 1.00 points of margin)",
    ]


@pytest.fixture
def two_tasks(tmp_path) -> Path:
    """dblp loses half a point with the CNN, and wins five points with the MLP."""
    build = ResultsBuilder(tmp_path / "runs", experiment="two-tasks", arms=["fixed-low", "dblp"])
    build.published = [RESNET]
    for model, lower in (("small-cnn", 0.005), ("mlp", -0.05)):
        config = {"training": {"model": model, "dataset": "digits"}}
        for seed in range(1, 6):
            for arm, accuracy in (("fixed-low", 0.9), ("dblp", 0.9 - lower)):
                build.run(
                    arm=arm, seed=seed, accuracy=accuracy, factors={"task": model}, config=config
                )
    return tmp_path


APART = [
    ("-0.50 points", "ours: small-cnn on digits, in the lab", "holds on our tasks only"),
    ("5.00 points", "ours: mlp on digits, in the lab", "holds on our tasks only"),
]


@pytest.mark.parametrize(
    ("verdicts", "column"),
    [
        (["contradicted", "contradicted"], "contradicted"),
        (["contradicted", "not tested"], "contradicted"),
        (["contradicted", "confirmed"], "mixed"),
        (["not tested", "not tested"], "not tested"),
    ],
)
def test_claims_are_counted_by_their_verdicts(two_tasks, monkeypatch, verdicts, column):
    kept = Kept(summary=summarise(load(two_tasks / "runs")), simulated=False, wall_s={})
    monkeypatch.setattr(claims, "verdict", lambda *_: verdicts.pop())
    table = verdicts_table([kept])
    counts = dict(zip(table.columns, [cell.text for cell in table.rows[0]], strict=True))
    others = int(counts["Claims"]) - 1
    assert counts[column] == str(1 + others if column == "not tested" else 1)


def test_no_accuracy_is_a_mean_over_tasks(two_tasks):
    results = load(two_tasks / "runs")
    summary = summarise(results)
    for arm in results.arms:
        assert entry(summary, "arms", arm, "accuracy").value is None
        assert entry(summary, "arms", arm, "round_latency_s.mean").value is not None
    assert entry(summary, "differences", "fixed-low-dblp", "accuracy").value is None
    (accuracy,) = (row for row in main_table(summary).rows if row[0].text.startswith("Final test"))
    assert {cell.text for cell in accuracy[1:]} == {"\u2014"}
    assert "nobody's: see the tables by point" in accuracy[1].note
    shown = {row[0].text: row[1].text for row in ratios.ratio_table(summary).rows}
    label = "Final test accuracy, difference (points)"
    assert {name: text for name, text in shown.items() if "accuracy" in name} == {
        f"{label}, task = small-cnn": "0.50",
        f"{label}, task = mlp": "-5.00",
    }
    headings = ratios.findings_table(summary).columns
    assert [heading for heading in headings if "accuracy" in heading] == list(shown)[-2:]
    assert "accuracy" not in summary["published"]
    rows = rows_of(summary, RESNET)
    assert [tuple(cell.text for cell in row[2:5]) for row in rows] == APART
    first, second = (row[-1] for row in rows)
    assert (first.text, first.detail, second.text) == (f"./lab replay {RESNET}", "4 min", "")


def test_each_task_has_a_panel_of_its_curves(two_tasks):
    results = load(two_tasks / "runs")
    tasks = {run.key: f"{run.factors['task']} on digits" for run in results.ok_runs}
    figure = rounds.quality(results.frame("training"), arm_styles(results.arms), "round", tasks)
    assert figure is not None
    shown = {axes.get_title(loc="left"): axes.lines for axes in figure.axes}
    assert list(shown) == ["small-cnn on digits", "mlp on digits"]
    ends = {
        task: sorted(np.asarray(line.get_ydata(), float)[-1] for line in lines)
        for task, lines in shown.items()
    }
    assert ends["mlp on digits"] == pytest.approx([90.0, 95.0])
    assert ends["small-cnn on digits"] == pytest.approx([89.5, 90.0])


ENTRIES = {paper.id: paper for paper in claims.load()}


def test_all_entries_are_complete():
    assert len(ENTRIES) == len(claims.load())  # no id twice
    models = {*claims.load_models(), claims.ANY_MODEL, claims.NOT_STATED}
    for paper in ENTRIES.values():
        assert set(paper.model) <= models and (len(paper.model) == 1 or "any" not in paper.model)
        assert paper.confidence in ("CODE", "FULL", "2nd-FULL", "ABS", "DERIVED")
        low, high = paper.ends
        assert low <= high and (low > 0 or paper.section == "differences")
        assert paper.title and paper.condition and paper.source and paper.version
        assert (len(paper.arms), len(paper.points)) in ((2, 0), (1, 2))
        if paper.values:
            first, second = paper.values.values()
            assert paper.bounds == pytest.approx([first - second] * 2)
        for metric in paper.metrics:
            metrics.describe(metric)


def test_the_numbers_fit_each_other_as_in_the_paper():
    assert ENTRIES["D1"].bounds == [4.00, 5.97]
    # The headline is the mean of the six rows: the paper's "reduction" is baseline / DBLP - 1.
    rows = [ENTRIES[f"D{number}"].bounds[0] for number in range(4, 11)]
    assert sum(rows[:6]) / 6 == pytest.approx(rows[6], abs=5e-4)
    assert ENTRIES["limit-bytes"].bounds[0] == pytest.approx((1 - 0.008) / (1 - 0.408), abs=1e-3)


def test_an_experiment_gets_what_it_names_or_what_its_arms_allow():
    assert [paper.id for paper in claims.select(["limit-bytes"], [])] == ["limit-bytes"]
    alone = claims.select(None, ["dblp", "tcp-cubic"])
    assert {paper.id for paper in alone} == {"D21", "D22", "D24"}
    both = {paper.id for paper in claims.select(None, ["dblp", "fixed-low"])}
    of_both = {name for name, claim in ENTRIES.items() if {*claim.arms} <= {"dblp", "fixed-low"}}
    assert both == of_both
    assert claims.unknown(["limit-bytes", "table-1-alexnet", "no-such"]) == ["no-such"]
