"""Shares of critical rounds: the table, and the cautions where runs that are compared differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import analysis
from analysis.data.load import load
from analysis.summary.document import summarise
from analysis.tables.critical_rounds import critical_rounds_table
from analysis.tables.main_table import main_table
from analysis.words import cautions
from tests.analysis.build import ResultsBuilder, edited, summary_of

PHASED = {"protocol": {"name": "dblp", "gather": "phased:low=0.008,high=0.408"}}
FIXED = {"protocol": {"name": "fixed-low", "gather": "fixed:tolerance=0.008"}}
OTHER = {"protocol": {"name": "dblp", "gather": "./mine.py:Own"}}  # says nothing of itself


def cautions_of(folder: Path) -> list[str]:
    results = load(folder)
    lines = cautions.lines(results, summarise(results))
    return [line for line in lines if line.startswith("phases differ")]


def test_arms_whose_phases_differ_call_for_a_caution(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, critical=3, config=PHASED)
    build.run(arm="dblp-bbr", seed=1, critical=10, config=PHASED)
    (arms,) = cautions_of(tmp_path)
    assert arms.startswith(
        "phases differ between arms: critical rounds by up to 70.00 points (seed 1), in 1 of 1"
    )


def test_a_comparison_hangs_on_phases_that_differ_between_its_seeds(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed, critical in ((1, 10), (2, 5)):
        build.run(arm="dblp", seed=seed, critical=critical, config=PHASED)
        build.run(arm="fixed-low", seed=seed, critical=critical, config=FIXED)
    (seeds,) = cautions_of(tmp_path)
    assert seeds.startswith(
        "phases differ between seeds: critical rounds by up to 50.00 points (dblp)"
    )


def test_the_worst_group_of_a_sweep_is_named_and_the_others_are_counted(tmp_path):
    build = ResultsBuilder(tmp_path)
    for q, other in ((0.6, 2), (0.9, 4)):
        for seed in (1, 2):
            build.run(arm="dblp", seed=seed, critical=2, config=PHASED, factors={"q": q})
            build.run(arm="stream", seed=seed, critical=other, config=PHASED, factors={"q": q})
    (arms,) = cautions_of(tmp_path)
    assert "up to 20.00 points (q = 0.9, seed 2), in 2 of 4" in arms


@pytest.mark.parametrize(("rounds", "warned"), [(40, False), (10, True)])
def test_a_small_difference_is_none(tmp_path, rounds, warned):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, rounds=rounds, critical=1, config=PHASED)
    build.run(arm="stream", seed=1, rounds=rounds, critical=2, config=PHASED)
    assert bool(cautions_of(tmp_path)) is warned


SCHEDULE = {"phases": {"detector": "schedule", "critical_rounds": [[0, 4]], "from": "x/dblp"}}


@pytest.mark.parametrize(
    "other",
    [
        {"arm": "fixed-low", "config": FIXED},
        {"arm": "fixed-low", "config": {}},
        {"seed": 2, "verdict": "invalid", "reason": "slow"},
        {"seed": 2, "config": PHASED | SCHEDULE},
    ],
    ids=["no phases", "no tolerance", "not ok", "chosen"],
)
def test_phases_that_change_no_tolerance_do_not_matter(tmp_path, other):
    build = ResultsBuilder(tmp_path)
    both = {"arm": "dblp", "seed": 1, "config": other.get("config", PHASED)}
    build.run(**both | ({} if "arm" not in other else {"config": PHASED}), critical=3)
    build.run(**both | other, critical=10)
    assert cautions_of(tmp_path) == []


def test_a_tolerance_of_own_code_is_known_by_what_was_logged(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed, critical in ((1, 3), (2, 9)):
        directory = build.run(arm="mine", seed=seed, critical=critical, config=OTHER)
        if seed == 2:
            with edited(directory / "events" / "rounds.jsonl") as rounds:
                rounds[0]["tolerance_gather"] = 0.4
    assert "by up to 60.00 points (mine)" in cautions_of(tmp_path)[0]


def test_the_table_has_the_arms_whose_tolerance_depends_on_the_phase(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed, critical in ((1, 10), (2, 5)):
        for q in (0.6, 0.9):
            arms = (("dblp", critical, PHASED), ("stream", 3, PHASED), ("tcp", 3, FIXED))
            for arm, of_arm, config in arms:
                build.run(arm=arm, seed=seed, critical=of_arm, config=config, factors={"q": q})
    summary = summary_of(tmp_path)
    table = critical_rounds_table(summary)
    cells = [[(cell.text, cell.detail) for cell in row] for row in table.rows]
    assert cells[0][0] == ("dblp", "") and cells[0][1][0] == "75.0"
    assert cells[0][2:] == [("50.0", "q = 0.6, seed 2"), ("100", "q = 0.9, seed 1")]
    assert cells[1][2:] == [("30.0", "all runs")] * 2
    assert len(table.rows) == 2 and len(table.records) == 8
    assert table.records[0] == {"arm": "dblp", "point": "q = 0.6", "seed": 1, "critical_share": 1.0}
    (shares,) = [row for row in main_table(summary).rows if "critical rounds" in row[0].text]
    assert [bool(cell.note) for cell in shares[1:]] == [False, False, True]


def test_an_experiment_without_such_an_arm_has_no_such_table(tmp_path):
    ResultsBuilder(tmp_path).run(arm="tcp", seed=1, config=FIXED)
    assert critical_rounds_table(summary_of(tmp_path)).rows == []


def test_cautions_stand_above_the_numbers_and_in_the_summary(tmp_path, undrawn):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, critical=3, config=PHASED)
    build.run(arm="stream", seed=1, critical=10, config=PHASED)
    paths = analysis.write_report(tmp_path)
    page = paths.index.read_text()
    assert page.index("phases differ between arms") < page.index('id="results"')
    assert json.loads(paths.summary.read_text())["cautions"] == paths.cautions
    assert paths.cautions[0].startswith("phases differ between arms")
