"""Finding and reading runs: everything is counted, nothing broken enters or crashes."""

import json
import os
import re
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import analysis
from analysis.data.load import load
from tests.analysis.build import ResultsBuilder, edited, write


def test_every_planned_run_is_counted_under_its_verdict(tmp_path):
    build = ResultsBuilder(tmp_path)
    verdicts = ["ok", "failed", "invalid", "unsupported", "interrupted"]
    for seed, verdict in enumerate(verdicts):
        build.run(arm="dblp", seed=seed, verdict=verdict, reason=f"because {verdict}")
    build.plan("dblp-s9", arm="dblp", seed=9)
    results = load(tmp_path)
    assert results.verdicts() == dict.fromkeys([*verdicts, "missing"], 1)
    assert set(results.frame("rounds")["seed"]) == {0}
    assert results.runs[2].reason == "because invalid"
    assert results.runs[-1].reason == "planned, not started"


def test_a_partial_directory_is_never_ok(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, suffix=".partial", verdict="ok")
    still_running = build.run(arm="dblp", seed=2, suffix=".partial")
    (still_running / "status.json").unlink()
    results = load(tmp_path)
    assert results.verdicts()["interrupted"] == 2
    assert results.frame("rounds").is_empty()
    assert "unfinished" in results.runs[1].reason


def test_earlier_attempts_and_unplanned_runs_are_listed_apart(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, burst_s=9.0, verdict="failed", suffix=".attempt2", planned=False)
    build.run(arm="dblp", seed=1, burst_s=9.0, verdict="invalid", suffix=".attempt10")
    build.run(arm="dblp", seed=1, burst_s=1.0, planned=False)
    build.run(arm="tcp-cubic", seed=7, key="tcp-old", planned=False)
    results = load(tmp_path)
    assert [run.verdict for run in results.runs] == ["ok"]
    assert [(run.verdict, run.note) for run in results.others] == [
        ("failed", "attempt 2"),
        ("invalid", "attempt 10"),
        ("ok", "not in the plan"),
    ]
    assert [run.key for run in results.left_out] == ["tcp-old"]
    assert results.frame("rounds")["latency_s"].max() == 1.0
    assert results.arms == ["dblp"]


def test_a_broken_line_in_the_middle_is_left_out_and_reported(tmp_path):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    log = directory / "events" / "rounds.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:3], '{"round": "x"}', "}{", *lines[5:]]) + "\n")
    results = load(tmp_path)
    assert results.frame("rounds")["round"].to_list() == [0, 1, 2, 5, 6, 7, 8, 9]
    problems = " ".join(results.runs[0].problems)
    assert "2 broken lines left out (4, 5)" in problems and "8 of 10 rounds" in problems


@pytest.mark.parametrize("written", ["NaN", "-Infinity", "1e999"])
def test_what_is_no_finite_number_is_no_value_and_reported(tmp_path, written, undrawn):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    log = directory / "events" / "rounds.jsonl"
    lines = log.read_text().splitlines()
    lines[2] = re.sub(r'"latency_s": [^,]*', f'"latency_s": {written}', lines[2])
    log.write_text("\n".join(lines) + "\n")
    results = load(tmp_path)
    assert results.frame("rounds")["latency_s"].null_count() == 1
    problem = "events/rounds.jsonl: NaN or infinity, taken for no value (3)"
    assert problem in results.runs[0].problems
    analysis.write_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("latency_s", "abc", "latency_s 'abc'; valid: a number, or null"),
        ("gather_s", [1], r"gather_s \[1\]; valid: a number"),
        ("round", 2**63, f"round {2**63}; valid: a number, or null"),
        ("critical", "yes", "critical 'yes'; valid: boolean"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_file_and_line(tmp_path, name, wrong, message):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    with edited(directory / "events" / "rounds.jsonl") as records:
        records[2][name] = wrong
    with pytest.raises(ValueError, match=rf"rounds\.jsonl, line 3: {message}") as refused:
        _ = load(tmp_path).frame("rounds")
    assert "\n" not in str(refused.value)


def test_missing_files_are_reported_and_the_run_still_counts(tmp_path):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    for name in ("manifest.json", "calibration.json", "events/training-worker-1.jsonl"):
        (directory / name).unlink()
    (directory / "events" / "training-worker-2.jsonl").unlink()
    results = load(tmp_path)
    assert results.verdicts()["ok"] == 1
    assert results.frame("training").is_empty()
    assert results.frame("rounds").height == 10
    assert results.runs[0].problems == [
        "manifest.json is missing",
        "calibration.json is missing",
        "events/training-*.jsonl is missing",
    ]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("status.json", None, "status.json is missing"),
        ("status.json", "{", "status.json cannot be read"),
        ("status.json", "{}", "no valid verdict: None"),
        ("status.json", '{"verdict": "great"}', "no valid verdict: 'great'"),
        ("status.json", '{"schema": 1, "verdict": "ok", "gates": 5}', "gates are no list"),
        ("config.json", '{"a":' * 100_000, "config.json cannot be read"),
        (
            "status.json",
            '{"schema": 2, "verdict": "ok"}',
            "schema 2; this version reads 1; './lab run quick --anew' runs it again",
        ),
        ("config.json", None, "config.json is missing"),
        ("config.json", "[]", "config.json is not a JSON object"),
        ("config.json", '{"schema": 0}', "schema 0; this version reads 1"),
    ],
)
def test_a_run_that_cannot_be_trusted_counts_as_failed(tmp_path, name, content, reason):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)
    (run,) = load(tmp_path).runs
    assert run.verdict == "failed"
    assert reason in run.reason


def test_the_experiment_planned_last_is_the_default(tmp_path):
    for age, name in ((100, "old"), (0, "new"), (200, "older")):
        ResultsBuilder(tmp_path, experiment=name).run(arm="dblp", seed=1)
        plan = tmp_path / name / "plan.json"
        os.utime(plan, (1e9 - age, 1e9 - age))
    assert load(tmp_path).experiment == "new"
    assert load(tmp_path, "old").experiment == "old"
    with pytest.raises(ValueError, match="no experiment 'nope' here; valid: new, old, older"):
        load(tmp_path, "nope")


@pytest.mark.parametrize("runs", [None, 5, ["x"]])
def test_without_a_plan_every_directory_counts(tmp_path, runs):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    plan = build.folder / "plan.json"
    if runs is None:
        plan.unlink()
    else:
        write(plan, {"schema": 1, "runs": runs})
    (build.folder / "report").mkdir()  # the report's own folder is no run
    results = load(tmp_path)
    assert results.verdicts()["ok"] == 1 and results.others == []
    damaged = "plan.json: its runs are no list of mappings"
    assert results.problems == ["plan.json is missing" if runs is None else damaged]


def test_bad_folders_are_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no runs found; valid: .*plan\.json"):
        load(tmp_path)
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    assert load(build.folder).results_dir == tmp_path  # its own folder stands for it
    with pytest.raises(ValueError, match="holds no runs of 'other'"):
        load(build.folder, "other")
    write(build.folder / "plan.json", {"schema": 1, "runs": []})
    (build.folder / "dblp-s1").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="no runs found"):
        load(tmp_path, "quick")


def test_kept_results_are_no_run_directories():
    kept = Path(__file__).parents[2] / "experiments" / "results"
    quick = kept / "quick"
    for named, rows in (
        ((kept, "quick"), quick / "rows.csv"),
        ((quick,), quick / "rows.csv"),
        ((kept,), kept / "NAME" / "rows.csv"),
    ):
        with pytest.raises(ValueError, match="not run directories") as refused:
            load(*named)
        assert f"polars.read_csv of {rows} (docs/reference/kept-results.md)" in str(refused.value)
    assert (quick / "rows.csv").is_file()


def test_the_fast_and_the_careful_reader_agree(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    fast = load(tmp_path).frame("transfers")
    log = build.folder / "dblp-s1" / "events" / "transfers-server.jsonl"
    log.write_text(log.read_text() + "\n\n")  # blank lines: not the fast way
    careful = load(tmp_path)
    assert careful.frame("transfers").equals(fast)
    assert careful.runs[0].problems == []
    assert json.loads(log.read_text().splitlines()[0])["ignored"] == {"stale": 0}


def test_own_code_is_named_by_its_file_and_not_by_its_folder(tmp_path):
    changes = {"code": {"/home/me/net.py": "00"}, "training": {"model": "/home/me/net.py:build"}}
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    for name in ("config.json", "manifest.json"):
        with edited(build.folder / "dblp-s1" / name) as document:
            document |= changes
    (run,) = load(tmp_path).runs
    assert run.config["training"]["model"] == "net.py:build"
    assert run.manifest["code"] == {"net.py": "00"}  # it is kept with the results


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"rounds": 5, "phases": {"detector": "always"}}, "not in the plan: other phases, rounds"),
        ({}, "not in the plan"),
    ],
)
def test_a_measured_run_that_is_in_no_table_says_why(tmp_path, config, why):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    build.run(arm="dblp", seed=1, key="dblp-s1-old", planned=False, config=config)
    build.run(arm="dblp", seed=1, key="dblp-s1-bad", planned=False, verdict="failed")
    (left,) = load(tmp_path).left_out
    assert left.key == "dblp-s1-old"
    assert sorted(left.note.replace(",", "").split()) == sorted(why.replace(",", "").split())


def test_many_runs_are_read_as_one_by_one(tmp_path, monkeypatch):
    build = ResultsBuilder(tmp_path)
    for seed in range(5):
        build.run(arm="dblp", seed=seed, burst_s=1.0 + seed)
    together = load(tmp_path)
    assert together.frame("rounds").height == 50
    assert together.per_run()["round_latency_s.max"].to_list() == [1.0, 2.0, 3.0, 4.0, 5.0]
    monkeypatch.setattr("analysis.data.measure._AT_ONCE", 1)
    alone = load(tmp_path)
    assert alone.frame("rounds").equals(together.frame("rounds"))
    assert alone.frame("transfers").equals(together.frame("transfers"))
    assert_frame_equal(alone.per_run(), together.per_run())  # but for the order of sums
