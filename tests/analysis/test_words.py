"""Headline, cautions and methods; and results that are refused."""

from __future__ import annotations

import json

import pytest

import analysis
from analysis.data.load import load
from analysis.summary.document import summarise
from analysis.tables import published_values, verdicts
from analysis.tables.main_table import main_table
from analysis.tables.rendering import to_markdown
from analysis.words import cautions, headline, methods
from tests.analysis.build import ResultsBuilder


def test_results_of_different_machines_are_flagged_at_the_top(tmp_path, undrawn):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    build.run(arm="fixed-low", seed=1)
    page = analysis.write_report(tmp_path).index.read_text()
    assert "different machines" not in page
    build.run(arm="dblp", seed=2, machine="Other CPU")
    page = analysis.write_report(tmp_path).index.read_text()
    assert "different machines: 2 on Test CPU" in page
    assert page.index("different machines") < page.index('id="results"')


def test_a_machine_of_a_failed_run_does_not_matter(tmp_path, undrawn):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    build.run(arm="dblp", seed=2, machine="Other CPU", verdict="failed", reason="it broke")
    assert "different machines" not in analysis.write_report(tmp_path).index.read_text()


def test_a_pause_in_a_run_that_counts_is_told_at_the_top(tmp_path):
    build = ResultsBuilder(tmp_path)
    told = "worker-2 stood still for 2.0 s in round 6"
    build.run(arm="dblp", seed=1, reason=told)
    build.run(arm="dblp", seed=2, verdict="invalid", reason=told)
    results = load(tmp_path)
    found = [each for each in cautions.lines(results, summarise(results)) if told in each]
    assert found == [f"{results.ok_runs[0].key}: {told}"]


def test_methods_are_written_from_manifests_and_configurations(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed in (1, 2, 3):
        build.run(arm="dblp", seed=seed)
    found = dict(methods.rows(load(tmp_path)))
    machine = found["Machine, for all hosts"]
    assert "Test CPU 2" in machine and "6.1.0-test" in machine
    assert found["Network"] == "star, 2 workers, 100 Mbit/s per link, queue 150000 bytes, no delay"
    assert "model small-cnn, dataset digits" in found["Training"] and found["Rounds"] == "10"
    assert found["Design"] == "arms: 1, seeds: 1, 2, 3, 3 of 3 planned runs ok"


def test_without_an_ok_run_there_are_no_methods(tmp_path):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1, verdict="failed", reason="it broke")
    assert methods.rows(load(tmp_path)) == []


@pytest.mark.parametrize("name", ["plan.json", "experiment.json"])
def test_results_of_another_schema_are_refused_with_the_command_to_use(tmp_path, name):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    path = build.folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 0}))
    with pytest.raises(ValueError) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{path}: schema 0; valid: 1.")
    assert "./lab run quick --out OTHER-DIR" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_of_another_schema_names_the_command_that_makes_it_again(tmp_path):
    build = ResultsBuilder(tmp_path)
    directory = build.run(arm="dblp", seed=1)
    document = json.loads((directory / "status.json").read_text())
    (directory / "status.json").write_text(json.dumps(document | {"schema": 7}))
    (run,) = load(tmp_path).runs
    assert run.verdict == "failed"
    assert "schema 7; this version reads 1; './lab run quick --anew' runs it again" in run.reason


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
    latency, _, accuracy = headline.lines(summarise(load(tmp_path)))  # six seeds: no word of n
    assert "dblp is faster" in latency  # five times as long in every seed
    assert accuracy.startswith("dblp \u2212 fixed-low \u00b7 Final test accuracy")
    assert "no clear difference" in accuracy


def test_the_extremes_of_a_sweep(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed in (1, 2):
        for q, longer in ((0.6, 2), (0.9, 4)):
            build.run(arm="dblp", seed=seed, burst_s=seed, factors={"q": q})
            build.run(arm="fixed-low", seed=seed, burst_s=longer * seed, factors={"q": q})
    (first, *others) = headline.lines(summarise(load(tmp_path)))
    assert first == (
        "fixed-low/dblp \u00b7 Round latency, burst rounds \u00b7 2.00\u20134.00 x at 2 of 2 points"
        " \u00b7 lowest at q = 0.6, highest at q = 0.9"
    )
    assert not any("2.83" in line for line in others)  # a mean over points is no point's


def test_one_seed_may_be_chance(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    build.run(arm="fixed-low", seed=1)
    assert headline.lines(summarise(load(tmp_path)))[-1].startswith("n = 1: an interval needs 5")


def test_a_lone_arm_is_not_the_finding_of_a_comparison(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, verdict="invalid", reason="slow")
    build.plan("fixed-low-s1", arm="fixed-low", seed=1)
    build.run(arm="tcp-cubic", seed=1)
    results = load(tmp_path)
    summary = summarise(results)
    (said,) = headline.lines(summary)
    assert said.startswith("nothing to compare yet: needs ok runs of dblp and another arm")
    assert cautions.lines(results, summary)[:2] == [
        "no ok run of dblp (1 invalid)",
        "no ok run of fixed-low (1 missing)",
    ]
    notes = [cell.note for row in published_values.experiment_table(summary).rows for cell in row]
    assert "no ok run of fixed-low and dblp" in notes
    assert not any("not measured" in note for note in notes)


def test_an_experiment_of_one_arm_tells_its_time(tmp_path):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    (said,) = headline.lines(summarise(load(tmp_path)))
    assert said.startswith("dblp \u00b7 Training time \u00b7 ")


def test_an_arm_with_ok_runs_alone_calls_for_no_caution(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    build.run(arm="dblp", seed=2, verdict="invalid", reason="slow")
    results = load(tmp_path)
    assert not any("ok run" in each for each in cautions.lines(results, summarise(results)))


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("invalid",), []),
        (("ok",), ["Each number comes from one seed: there is no interval."]),
        (
            ("ok", "ok"),
            [
                "Each number is a mean over seeds, with the values of the seeds.",
                "Fewer than 5 seeds give no interval; here n = 2.",
            ],
        ),
    ],
)
def test_the_main_table_says_once_what_its_intervals_are(tmp_path, verdicts, expected):
    build = ResultsBuilder(tmp_path)
    for seed, verdict in enumerate(verdicts):
        build.run(arm="dblp", seed=seed, verdict=verdict, reason="slow")
    notes = main_table(summarise(load(tmp_path))).notes
    assert [each for each in notes if not each.startswith("Left out")] == expected


def test_waived_gates_are_told_in_a_caution_the_main_table_and_the_tables_of_gates(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="fixed-low", seed=3)
    directory = build.run(arm="dblp", seed=3)
    status = json.loads((directory / "status.json").read_text())
    words = "cpu_wait, by a limit of 1000 instead of 0.3"
    status["gates"] += [
        {"name": "a", "key": "cpu_wait", "value": 0.1, "limit": 1000.0, "outcome": "passed"}
        | {"waived": words, "decides": True},
        {"name": "b", "key": "conservation", "value": None, "limit": 0.001, "note": "no counters"}
        | {"outcome": "not measured", "waived": "conservation, by limits.waive"}
        | {"decides": False},
    ]
    (directory / "status.json").write_text(json.dumps(status))
    results = load(tmp_path)
    summary = summarise(results)
    expected = f"{words} (1 of 2 ok runs); conservation, by limits.waive (1 of 2 ok runs; "
    expected += "failed or not measured in 1)"
    assert f"waived gates: {expected}" in (cautions.lines(results, summary))
    note = f"With waived gates: {words}; conservation, by limits.waive."
    assert note in main_table(summary).notes
    gates = to_markdown(verdicts.gate_table(results)).replace("\\", "")
    assert f"waived: {words}" in gates
    assert "not measured (no counters)" in gates
    of_run = to_markdown(verdicts.all_runs_table(results)).replace("\\", "")
    assert f"2 passed, 1 not measured (b: not measured, no counters; waived: {words}" in of_run
