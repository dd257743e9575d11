"""What was learnt and what loss did to it, worked out by hand from what the builder wrote."""

from __future__ import annotations

import pytest

from analysis.data import measure
from analysis.data.frames import per_run
from analysis.data.load import load
from analysis.report import remarks
from analysis.summary.document import summarise
from analysis.tables.by_arm import main_table
from analysis.tables.critical_path import layer_loss_table
from tests.analysis.build import ResultsBuilder, edited


def row(folder, **options):
    ResultsBuilder(folder).run(arm="dblp", seed=1, **options)
    return per_run(load(folder)).row(0, named=True)


def shown(folder):
    results = load(folder)
    summary = summarise(results)
    return summary, main_table(summary), remarks.cautions(results, summary)


def test_a_target_counts_from_the_first_evaluation_that_reaches_it(tmp_path):
    # Replicas' means: 0.09 after round 0, 0.36 after 3, 0.63 after 6, 0.9 after 9.
    found = row(tmp_path, target=0.36, calm_s=0.1, compute_s=0.1)
    assert found["rounds_to_target"] == 4
    assert found["time_to_target_s"] == pytest.approx(4 * 0.2)
    assert found["target_reached"] == 1


def test_a_target_that_is_not_reached_is_told_and_has_no_time(tmp_path):
    found = row(tmp_path, target=0.95)
    assert found["time_to_target_s"] is None and found["rounds_to_target"] is None
    assert found["target_reached"] == 0
    _, table, _ = shown(tmp_path)
    labels = [line[0].text for line in table.rows]
    assert "Runs that reached the target (%)" in labels
    assert "Training time to the target (s)" not in labels


def test_perplexity_takes_the_place_of_accuracy_and_falls_to_its_target(tmp_path):
    # It rises in the builder; a target of 1.2 is reached by the first value, 0.3.
    found = row(tmp_path, metric="perplexity", accuracy=3.0, target=1.2)
    assert found["perplexity"] == pytest.approx(3.0) and found["accuracy"] is None
    assert found["rounds_to_target"] == 1
    summary, table, _ = shown(tmp_path)
    assert summary["task_metric"] == "perplexity"
    labels = [line[0].text for line in table.rows]
    assert "Final test perplexity (lower is better)" in labels
    assert not any("accuracy" in label for label in labels)


def test_without_learning_the_table_says_why(tmp_path):
    row(tmp_path, pace={"kind": "payload-only", "compute_s": 0.0})
    summary, table, found = shown(tmp_path)
    assert summary["task_metric"] is None
    (accuracy,) = [line for line in table.rows if "accuracy" in line[0].text]
    assert "nothing is learnt" in accuracy[1].note
    assert any(each.startswith("nothing is learnt") for each in found)


def test_a_pace_is_printed_and_what_overran_it(tmp_path):
    found = row(tmp_path, pace={"kind": "paced", "compute_s": 0.05}, compute_s=0.05, calm_s=0.1)
    assert found["pace_overrun_share"] == pytest.approx(0.1)  # the first of ten iterations
    assert found["compute_to_communication"] == pytest.approx(10 * 0.05 / 2.8)
    _, table, sentences = shown(tmp_path)
    labels = [line[0].text for line in table.rows]
    assert "Computing over communicating, paced" in labels
    assert "Share of time in communication (%), paced" in labels
    assert any("computing takes 50.0 ms per iteration" in each for each in sentences)
    assert any(each.startswith("slower than the pace: up to 10.0 %") for each in sentences)


def test_effects_of_loss_are_averaged_and_the_divergence_is_the_last(tmp_path):
    found = row(tmp_path, layers=3, workers=2)
    assert found["relative_error.gathered"] == pytest.approx(0.1)
    assert found["relative_error.applied"] == pytest.approx(0.2)
    assert found["cosine.applied"] == pytest.approx(0.97)
    assert found["replica_divergence"] == pytest.approx(0.009)


def test_workers_do_not_weigh_more_than_one_that_has_no_value(tmp_path):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1, layers=2, workers=2)
    with edited(directory / "events" / "effects.jsonl") as records:
        records[0]["applied"]["worker-1"]["cosine"] = None
        records[0]["applied"]["worker-2"]["cosine"] = 0.5
    frame = measure.deviations(load(tmp_path).frame("effects"))
    assert frame["cosine.applied"].to_list()[:2] == pytest.approx([0.5, 0.97])


def test_loss_by_layer_is_averaged_over_transfers_and_its_ends_are_named(tmp_path):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1, layers=4, received=90, workers=2)
    frame = load(tmp_path).frame("layer_loss")
    for leg, last in (("gather", 0.1), ("broadcast", 0.05)):
        of_leg = frame.filter(frame["leg"] == leg)
        assert of_leg["missing"].to_list() == pytest.approx([0, 0, 0, last])
    assert set(of_leg["transfers"]) == {20}  # ten rounds, two workers
    table = layer_loss_table("quick", frame, ["dblp"])
    assert [[f"{cell.text} {cell.detail}" for cell in row] for row in table.rows] == [
        ["dblp ", "gather ", "0 layer 1", "10.0 layer 4"],
        ["dblp ", "broadcast ", "0 layer 1", "5.00 layer 4"],
    ]
    assert len(table.records) == 8


def test_effects_that_were_asked_for_and_are_missing_are_a_problem(tmp_path):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1, layers=2)
    (directory / "events" / "effects.jsonl").unlink()
    results = load(tmp_path)
    assert results.frame("effects").is_empty()
    assert results.runs[0].problems == ["events/effects.jsonl is missing"]


def test_lost_workers_are_shown(tmp_path):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    with edited(directory / "events" / "rounds.jsonl") as rounds:
        for record in rounds[6:]:
            record["workers_lost"] = ["worker-2"]
    summary, table, sentences = shown(tmp_path)
    assert summary["arms"]["dblp"]["workers_lost"]["value"] == 1
    assert any(line[0].text == "Workers lost" for line in table.rows)
    assert "workers lost in 1 of 1 ok runs" in sentences


@pytest.mark.parametrize("last", [None, float("nan"), float("inf")])
def test_a_training_that_diverged_has_no_final_value_and_is_shown(tmp_path, last):
    build = ResultsBuilder(tmp_path)
    for seed in (1, 2):
        run = build.run(arm="dblp", seed=seed, metric="perplexity", accuracy=9.0, workers=2)
    with edited(run / "events" / "training-worker-2.jsonl") as records:
        records[-1]["perplexity"] = last
    assert per_run(load(tmp_path))["perplexity"].to_list() == [pytest.approx(9.0), None]
    summary, _, sentences = shown(tmp_path)
    assert summary["arms"]["dblp"]["perplexity"]["n"] == 1
    assert "1 of 2 trainings end without a finite perplexity" in " ".join(sentences)
