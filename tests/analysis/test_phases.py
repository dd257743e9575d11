"""Shares of critical rounds: the table, and the cautions where runs that are compared differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import analysis
from analysis.data.load import load
from analysis.report import remarks
from analysis.summary.document import summarise
from tests.analysis.build import ResultsBuilder, edited

PHASED = {"protocol": {"name": "dblp", "gather": "phased:low=0.008,high=0.408"}}
FIXED = {"protocol": {"name": "fixed-low", "gather": "fixed:tolerance=0.008"}}
OTHER = {"protocol": {"name": "dblp", "gather": "./mine.py:Own"}}  # says nothing of itself


def cautions_of(folder: Path) -> list[str]:
    results = load(folder)
    lines = remarks.cautions(results, summarise(results))
    return [line for line in lines if line.startswith("phases differ")]


def test_a_comparison_hangs_on_phases_that_differ_between_its_seeds(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed, critical in ((1, 10), (2, 5)):
        build.run(arm="dblp", seed=seed, critical=critical, config=PHASED)
        build.run(arm="fixed-low", seed=seed, critical=critical, config=FIXED)
    (seeds,) = cautions_of(tmp_path)
    assert seeds.startswith(
        "phases differ between seeds: critical rounds by up to 50.00 points (dblp)"
    )


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


def test_cautions_stand_above_the_numbers_and_in_the_summary(tmp_path, undrawn):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, critical=3, config=PHASED)
    build.run(arm="stream", seed=1, critical=10, config=PHASED)
    paths = analysis.write_report(tmp_path)
    page = paths.index.read_text()
    assert page.index("phases differ between arms") < page.index('id="results"')
    assert json.loads(paths.summary.read_text())["cautions"] == paths.cautions
    assert paths.cautions[0].startswith("phases differ between arms")
