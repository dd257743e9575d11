"""What is flagged at the top of a report, the methods section, and what is refused."""

from __future__ import annotations

import json

import pytest

import analysis
from analysis.data.load import load
from analysis.words import methods
from tests.analysis.build import ResultsBuilder


def test_results_of_different_machines_are_flagged_at_the_top(tmp_path, undrawn):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    build.run(arm="fixed-low", seed=1)
    page = analysis.write_report(tmp_path).index.read_text()
    assert "different machines" not in page
    build.run(arm="dblp", seed=2, machine="Other CPU")
    page = analysis.write_report(tmp_path).index.read_text()
    assert "Results of 2 different machines are mixed here: 2 on Test CPU" in page
    assert page.index("different machines are mixed") < page.index('id="results"')


def test_a_machine_of_a_failed_run_does_not_matter(tmp_path, undrawn):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    build.run(arm="dblp", seed=2, machine="Other CPU", verdict="failed", reason="it broke")
    assert "different machines" not in analysis.write_report(tmp_path).index.read_text()


def test_methods_are_written_from_manifests_and_configurations(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed in (1, 2, 3):
        build.run(arm="dblp", seed=seed)
    text = " ".join(methods.sentences(load(tmp_path)))
    assert "Test CPU 2" in text and "6.1.0-test" in text
    assert "star with 2 workers, 100 Mbit/s per link, queues of 150000 bytes" in text
    assert "small-cnn on digits" in text and "10 rounds" in text
    assert "1 arm, 3 seeds (1, 2, 3), 3 runs planned, 3 ok" in text
    assert "rates were within 1 % of what was configured" in text


def test_without_an_ok_run_there_are_no_methods(tmp_path):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1, verdict="failed", reason="it broke")
    assert methods.sentences(load(tmp_path)) == []


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
    assert "schema 7; this version reads 1; './lab resume quick' runs it again" in run.reason
