"""Kept results give the same numbers as the run directories, or are refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.data import kept_rows
from analysis.data.load import load
from analysis.data.metrics import is_tail_quantile
from analysis.report import remarks
from analysis.report.kept_results import RESULTS, ROOT
from analysis.summary import lookup
from analysis.summary.document import summarise
from analysis.tables.ratios import findings_table, ratio_table
from tests.analysis.build import ResultsBuilder, edited
from tests.analysis.test_report import three_arms
from tests.analysis.test_sweep_points import sweep

_TABLES = (kept_rows.ATTEMPTS, kept_rows.GATES, kept_rows.ROWS)
FILES = (kept_rows.EXPERIMENT, kept_rows.PLAN, *_TABLES, kept_rows.MANIFEST)


def kept(runs: Path, folder: Path) -> Path:
    folder.mkdir()
    results = load(runs)
    kept_rows.write(folder, results)
    return folder


def with_many_kinds_of_runs(folder: Path) -> None:
    """An earlier attempt, a failed run, one not started, an unplanned one, a waived gate."""
    build = three_arms(folder)
    build.run(
        arm="dblp", seed=1, verdict="invalid", reason="late", suffix=".attempt1", planned=False
    )
    build.run(arm="dblp", seed=3, verdict="failed", reason='it said: "no", then\nended')
    build.plan("tcp-cubic-s3", arm="tcp-cubic", seed=3)
    build.run(arm="dblp", seed=9, planned=False, rounds=12)
    directory = build.run(arm="fixed-low", seed=3, machine="Another CPU", accuracy=0.1 + 0.2)
    with edited(directory / "status.json") as status:
        status["gates"][0] |= {"value": 0.2, "outcome": "failed", "waived": "rate: off"}
        status["gates"][0]["decides"] = False


def with_pairs_of_its_own(folder: Path) -> None:
    """Two of the pairs are named; the third has an arm without runs."""
    build = three_arms(folder)
    build.compare = [["dblp", "tcp-cubic"], ["tcp-cubic", "fixed-low"], ["dblp", "mlt"]]
    build.run(arm="dblp", seed=3)


def test_tables_compare_the_pairs_that_the_experiment_names(tmp_path):
    with_pairs_of_its_own(tmp_path)
    summary = summarise(load(tmp_path))
    pairs = ["dblp/tcp-cubic", "tcp-cubic/fixed-low"]
    assert ratio_table(summary).columns[1:] == pairs
    assert [cells[0].text for cells in findings_table(summary).rows] == pairs
    assert set(summary["unpaired"]) == {"dblp/tcp-cubic"}
    # Without any of its pairs, and in a summary that was stored without them: over one arm.
    results = load(tmp_path)
    over_dblp = [("fixed-low", "dblp"), ("tcp-cubic", "dblp")]
    assert sorted(replace(results, compare=[["dblp", "mlt"]]).compared) == over_dblp
    for damaged in (5, [5], [[1, 2]], [["dblp"]], [[["dblp"], ["mlt"]]]):
        with edited(tmp_path / "quick" / "experiment.json") as document:
            document["compare"] = damaged
        assert sorted(load(tmp_path).compared) == over_dblp
    del summary["compared"]
    assert sorted(lookup.pairs(summary)) == over_dblp


@pytest.mark.parametrize(
    "build",
    [
        with_many_kinds_of_runs,
        with_pairs_of_its_own,
        lambda folder: sweep(folder, seeds=2),
        lambda folder: ResultsBuilder(folder).run(
            arm="dblp", seed=1, metric="perplexity", layers=2, congestion_control="bbr"
        ),
    ],
    ids=["kinds of runs", "pairs", "sweep", "layers"],
)
def test_kept_rows_give_the_numbers_and_words_of_the_run_directories(tmp_path, build):
    build(tmp_path / "runs")
    results = load(tmp_path / "runs")
    read = kept_rows.read(kept(tmp_path / "runs", tmp_path / "kept"))
    summary = summarise(results)
    assert summarise(read) == summary
    assert remarks.cautions(read, summary) == remarks.cautions(results, summary)
    rows = results.per_run()
    assert read.per_run().select(rows.columns).equals(rows, null_equal=True)
    for was, is_now in zip(results.runs, read.runs, strict=True):
        assert (is_now.key, is_now.verdict, is_now.factors) == (was.key, was.verdict, was.factors)
        assert is_now.config == was.config


@pytest.mark.parametrize("room", [kept_rows._MOST_BYTES, 1])
def test_a_quantile_is_kept_only_with_the_rounds_that_it_is_made_of(tmp_path, monkeypatch, room):
    monkeypatch.setattr(kept_rows, "_MOST_BYTES", room)
    ResultsBuilder(tmp_path / "runs").run(arm="dblp", seed=1, rounds=30)
    read = kept_rows.read(kept(tmp_path / "runs", tmp_path / "kept"))
    assert (read.rounds is None) == (room == 1) == (read.rows["round_latency_s.p95"][0] is None)
    assert read.rows["round_latency_s.p50"][0] == pytest.approx(0.1)
    for folder in (ROOT / RESULTS).glob(f"*/{kept_rows.ROWS}"):
        names = folder.read_text().partition("\n")[0].split(",")
        lasting = (folder.parent / kept_rows.ROUNDS).is_file()
        assert lasting or not any(map(is_tail_quantile, names)), folder


def test_no_folder_of_the_machine_is_kept(tmp_path):
    build = ResultsBuilder(tmp_path / "runs")
    for seed in (1, 2):
        build.run(arm="dblp", seed=seed, config={"folder": "/home/me/experiments", "rounds": 60})
    commands = ["./lab run quick --out /home/me/b", "./lab resume /home/me/b/quick --retries 6"]
    (folder := tmp_path / "kept").mkdir()
    kept_rows.write(folder, replace(load(tmp_path / "runs"), commands=commands))
    texts = [path.read_text() for path in folder.iterdir() if path.suffix in (".json", ".jsonl")]
    assert texts and not any("/home/me" in text for text in texts)
    read = kept_rows.read(folder)
    assert read.runs[0].config["rounds"] == 60
    assert read.commands == ["./lab run quick", "./lab resume quick --retries 6"]


def test_refused_attempts_are_kept_with_their_reasons_and_gates(tmp_path):
    with_many_kinds_of_runs(tmp_path / "runs")
    read = kept_rows.read(kept(tmp_path / "runs", tmp_path / "kept"))
    refused = next(run for run in read.others if run.key == "dblp-s1")
    assert (refused.verdict, refused.reason, refused.note) == ("invalid", "late", "attempt 1")
    assert [(gate["name"], gate["value"], gate["outcome"]) for gate in refused.gates] == [
        ("rate", 0.2, "failed")
    ]
    assert read.verdicts()["missing"] == 1


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("rows.csv", lambda rows: rows[:-1], "no row of run tcp-cubic-s2 (tcp-cubic, seed 2)"),
        ("rows.csv", lambda rows: [rows[0].replace("accuracy", "wit"), *rows[1:]], "'wit'"),
        (
            "rows.csv",
            lambda rows: [*rows[:3], rows[3].replace("0.9", "0.x", 1), *rows[4:]],
            "`0.x` as dtype `f64` at column 'accuracy'",
        ),
        ("rows.csv", lambda rows: [rows[0], rows[1].replace(",1,", ",7,", 1), *rows[2:]], "seed 7"),
        ("attempts.csv", lambda rows: rows[:-1], "no attempt at run tcp-cubic-s2"),
        ("attempts.csv", lambda rows: [*rows, rows[-1]], "line 8: run tcp-cubic-s2; valid: "),
        ("attempts.csv", lambda rows: [row.replace(",ok,", ",good,") for row in rows], "'good'"),
        ("plan.jsonl", lambda rows: rows[:5], "5 runs; valid: 6"),
        ("plan.jsonl", lambda rows: ["{", *rows[1:]], "a JSON object per planned run"),
        (
            "plan.jsonl",
            lambda rows: [rows[0].replace('"arm": "dblp"', '"arm": "ltp"'), *rows[1:]],
            "arm 'ltp' of run dblp-s1; valid: dblp, fixed-low, tcp-cubic",
        ),
        ("gates.csv", lambda rows: [rows[0], rows[1].replace(",1,", ",4,", 1)], "attempt 4 at"),
        (
            "plan.jsonl",
            lambda rows: [re.sub(r', "config": .*}', "}", rows[0]), *rows[1:]],
            "no config of run",
        ),
        ("experiment.json", lambda rows: ['{"schema": 9}'], "schema 9; valid: 1"),
    ],
)
def test_damaged_evidence_is_refused_in_one_line_that_names_it(tmp_path, file, change, message):
    three_arms(tmp_path / "runs")
    folder = kept(tmp_path / "runs", tmp_path / "kept")
    rows = (folder / file).read_text().splitlines(keepends=True)
    (folder / file).write_text("".join(change(rows)))
    with pytest.raises(ValueError) as refused:
        kept_rows.read(folder)
    assert message in str(refused.value) and file in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(tmp_path, file):
    three_arms(tmp_path / "runs", seeds=1)
    folder = kept(tmp_path / "runs", tmp_path / "kept")
    (folder / file).unlink()
    with pytest.raises(ValueError, match=rf"{file}: missing|{file}: .*No such file"):
        kept_rows.read(folder)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([1.0, "a", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), min_size=1, max_size=4))
def test_documents_are_their_common_part_and_their_own(documents):
    shared = kept_rows.common(documents)
    for document in documents:
        joined = kept_rows.joined(shared, kept_rows.own(document, shared))
        assert json.dumps(joined, sort_keys=True) == json.dumps(document, sort_keys=True)
