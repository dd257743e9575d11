"""Samples of old runs go, the tables stay as they are, and the report says what is missing."""

from __future__ import annotations

import os
import time

import pytest
from typer.testing import CliRunner

from analysis.report.writing import write_report
from testbed.cli.verbs import app
from testbed.experiment import disk_space
from testbed.run import pruning
from testbed.shared.run_directory import read_json
from tests.analysis.build import ResultsBuilder
from tests.analysis.test_timeline import add_samples, add_times


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr("analysis.figures.catalogue.draw_all", lambda *_: [])  # it takes seconds
    built = ResultsBuilder(tmp_path / "runs")
    for seed in (1, 2):
        run = built.run(arm="dblp", seed=seed)
        add_times(run)
        add_samples(run)
    return built


def lab(*words):
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def samples(folder):
    return sorted(folder.glob("*/*/samples/*.parquet"))


def test_the_tables_stay_the_report_says_so_and_the_manifest_records_it(results):
    before = write_report(results.results_dir, None)
    numbers = read_json(before.index.with_name("summary.json"))
    assert "pruned" not in before.index.read_text()
    size = sum(each.stat().st_size for each in samples(results.results_dir))
    runs = sorted({each.parents[1] for each in samples(results.results_dir)})
    sizes = [disk_space.whole_bytes(each) for each in runs]
    status, output = lab("prune", "--out", str(results.results_dir), "--yes")
    assert status == 0, output
    found = [disk_space.whole_bytes(each) for each in runs]  # estimates do not shrink
    assert found == pytest.approx(sizes, rel=0.05)
    assert not samples(results.results_dir)
    after = write_report(results.results_dir, None)
    assert read_json(after.index.with_name("summary.json")) == numbers
    assert "Samples of 2 runs were pruned later" in after.index.read_text()
    manifests = [read_json(each) for each in results.results_dir.glob("*/*/manifest.json")]
    records = [record for each in manifests for record in each["pruned"]]
    assert sum(each["bytes"] for each in records) == size
    assert {name for each in records for name in each["files"]} == {
        "samples/queues.parquet",
        "samples/flows.parquet",
    }
    assert lab("prune", "--out", str(results.results_dir))[1].strip() == "no samples to remove"


def test_nothing_goes_without_an_answer(results):
    kept = samples(results.results_dir)
    status, output = lab("prune", "--out", str(results.results_dir))
    assert status == 1
    assert "nothing was removed" in output
    assert "dblp-s1" in output
    assert samples(results.results_dir) == kept


def test_only_old_runs_only_one_run_and_never_one_in_progress(results):
    first, second = sorted({each.parents[1] for each in samples(results.results_dir)})
    old_s = time.time() - 3 * 86_400
    os.utime(first / "status.json", (old_s, old_s))
    going_on = second.rename(second.with_name(second.name + ".partial"))
    status, output = lab("prune", "--out", str(results.results_dir), "--older-than", "7d")
    assert (status, output.strip()) == (0, "no samples to remove")
    assert [each.directory for each in pruning.prunable(results.results_dir)] == [first]
    found = pruning.prunable(first, older_than_s=86_400)
    assert [each.directory for each in found] == [first]
    status, output = lab(
        "prune", first.name, "--out", str(results.results_dir), "--older-than", "1 d", "--yes"
    )
    assert status == 0, output
    assert {each.parents[1] for each in samples(results.results_dir)} == {going_on}


@pytest.mark.parametrize("age", ["7", "d", "7 days", "-1d"])
def test_a_malformed_age_is_refused_in_one_line(results, age):
    done = CliRunner().invoke(
        app, ["prune", "--out", str(results.results_dir), f"--older-than={age}"]
    )
    assert done.exit_code != 0
    assert f"--older-than {age}: valid: a number with m" in str(done.exception)
