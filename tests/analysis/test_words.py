"""Headline, cautions and methods; and results that are refused."""

import json
from pathlib import Path

import pytest

import analysis
from analysis.data.load import load
from analysis.report import remarks
from analysis.summary.document import summarise
from analysis.tables import claims, verdicts
from analysis.tables.by_arm import main_table
from analysis.tables.ratios import findings_table, first_finding, ratio_table
from analysis.tables.rendering import to_markdown
from tests.analysis.build import ResultsBuilder, edited, summary_of
from tests.analysis.test_sweep_points import sweep


def test_a_remark_is_told_of_a_run_that_counts_alone(tmp_path):
    build = ResultsBuilder(tmp_path)
    remark = "went on without probe"
    build.run(arm="dblp", seed=1, reason=remark)
    build.run(arm="dblp", seed=2, verdict="invalid", reason=remark)
    results = load(tmp_path)
    lines = remarks.cautions(results, summarise(results))
    assert [line for line in lines if remark in line] == [f"{results.ok_runs[0].key}: {remark}"]
    assert not any("ok run" in line for line in lines)  # its arm has one


def test_methods_are_written_from_manifests_and_configurations(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, verdict="failed", reason="it broke")
    assert remarks.methods(load(tmp_path)) == []
    for seed in (2, 3, 4):
        build.run(arm="dblp", seed=seed)
    rows = dict(remarks.methods(load(tmp_path)))
    machine = rows["Machine, for all hosts"]
    assert "Test CPU 2" in machine and "6.1.0-test" in machine
    assert rows["Topology"] == "name star, workers 2, rate_bps 100000000, queue_bytes 150000"
    assert "model small-cnn, dataset digits" in rows["Training"] and rows["Rounds"] == "10"
    assert rows["Seeds"] == "2, 3, 4"


@pytest.mark.parametrize("name", ["plan.json", "experiment.json"])
def test_results_of_another_schema_are_refused_with_the_command_to_use(tmp_path, name):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    with edited(path := build.folder / name) as document:
        document["schema"] = 0
    with pytest.raises(ValueError) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{path}: schema 0; valid: 1.")
    assert "./lab run quick --out OTHER-DIR" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_headline_says_where_its_interval_includes_no_difference(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed in range(1, 7):
        sign = (-1) ** seed
        build.run(arm="dblp", seed=seed, calm_s=0.1, burst_s=0.2, accuracy=0.9)
        build.run(
            arm="fixed-low",
            seed=seed,
            calm_s=0.1 * (1 + 0.2 * sign),
            burst_s=1.0,
            accuracy=0.9 + 0.02 * sign,
        )
    summary = summary_of(tmp_path)
    p_values = [(r["p_value"], r["p_value_corrected"]) for r in ratio_table(summary).records]
    smallest, corrected = min(pair for pair in p_values if pair[0])
    assert corrected > 2 * smallest  # Holm: times as many as are not smaller
    table = findings_table(summary)
    assert table.notes == []  # six seeds: no word of n
    ((_, latency, _, accuracy),) = table.rows
    assert latency.detail.startswith("dblp is faster")  # five times as long in every seed
    assert table.columns[3].startswith("Final test accuracy")
    assert accuracy.detail.startswith("no clear difference")


def test_the_extremes_of_a_sweep(tmp_path):
    sweep(tmp_path)
    summary = summary_of(tmp_path)
    assert first_finding(summary) == (
        "fixed-low/dblp: Round latency, burst rounds 2.00\u20134.00 x "
        "(2 of 2 points, lowest at q = 0.6, highest at q = 0.9)"
    )
    assert "2.83" not in to_markdown(findings_table(summary))  # a mean over points is no point's


def test_a_lone_arm_is_not_the_finding_of_a_comparison(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, verdict="invalid", reason="slow")
    build.plan("fixed-low-s1", arm="fixed-low", seed=1)
    build.run(arm="tcp-cubic", seed=1)
    results = load(tmp_path)
    summary = summarise(results)
    line = first_finding(summary)
    assert line.startswith("nothing to compare yet: needs ok runs of dblp and another arm")
    assert remarks.cautions(results, summary)[:2] == [
        "no ok run of dblp (1 invalid)",
        "no ok run of fixed-low (1 missing)",
    ]
    notes = [cell.note for row in claims.experiment_table(summary).rows for cell in row]
    assert "not measured by both in ok runs" in notes


def test_an_experiment_of_one_run_tells_its_time_and_what_it_lacks(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.published = ["no-such-id"]
    build.run(arm="dblp", seed=1)
    results = load(tmp_path)
    summary = summarise(results)
    assert first_finding(summary).startswith("dblp: Training time ")
    expected = ["Each number comes from one seed: there is no interval."]
    assert main_table(summary).notes == expected
    (line,) = remarks.cautions(results, summary)
    assert line.startswith("published: 'no-such-id' is unknown; valid: ")


def test_waived_gates_are_told_in_a_caution_the_main_table_and_the_tables_of_gates(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="fixed-low", seed=3)
    directory = build.run(arm="dblp", seed=3)
    words = "cpu_wait, by a limit of 1000 instead of 0.3"
    with edited(directory / "status.json") as status:
        status["gates"] += [
            {"name": "a", "key": "cpu_wait", "value": 0.1, "limit": 1000.0, "outcome": "passed"}
            | {"waived": words, "decides": True},
            {"name": "b", "key": "conservation", "value": None, "limit": 0.001}
            | {"outcome": "not measured", "note": "no counters", "decides": False}
            | {"waived": "conservation, by limits.waive"},
        ]
    results = load(tmp_path)
    summary = summarise(results)
    expected = f"{words} (1 of 2 ok runs); conservation, by limits.waive (1 of 2 ok runs; "
    expected += "failed or not measured in 1)"
    assert f"waived gates: {expected}" in (remarks.cautions(results, summary))
    note = f"With waived gates: {words}; conservation, by limits.waive."
    assert note in main_table(summary).notes
    gates = to_markdown(verdicts.gate_table(results)).replace("\\", "")
    assert f"waived: {words}" in gates
    assert "not measured (no counters; dblp-s3)" in gates
    of_run = to_markdown(verdicts.run_table(results)).replace("\\", "")
    assert f"2 passed, 1 not measured (b: not measured, no counters; waived: {words}" in of_run


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
    assert "between seeds: critical rounds by up to 50.00 points (dblp)" in seeds


SCHEDULE = {"phases": {"detector": "schedule", "critical_rounds": [[0, 4]]}}


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
