"""One run's metrics, and what was learnt, worked out by hand from what the builder wrote."""

import json
from pathlib import Path

import pytest

from analysis.data import measure
from analysis.data.evidence import kind_name
from analysis.data.load import load
from analysis.report import remarks
from analysis.summary.document import summarise
from analysis.tables.by_arm import main_table, round_time_table
from tests.analysis.build import ResultsBuilder, edited, write_lines


def row(tmp_path, **options):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1, **options)
    frame = load(tmp_path).per_run()
    assert frame.height == 1
    return frame.row(0, named=True)


def test_latency_and_time(tmp_path):
    # Eight calm rounds of 0.1 s, two of 1 s, each with 0.05 s of compute.
    expected = {
        "training_time_s": 0.8 + 2 + 10 * 0.05,
        "rounds_per_s": 10 / 3.3,
        "round_latency_s.mean": 0.28,
        "round_latency_s.p50": 0.1,
        "round_latency_s.max": 1.0,
        "round_latency_s.burst_mean": 1.0,
        "round_latency_s.calm_mean": 0.1,
        "communication_share": 2.8 / 3.3,
        "burst_tolerance.gather": 0.1,
        "critical_share": 0.1,
        "impaired_latency_s.loss": 1.0,
        "impaired_latency_s.burst": 1.0,
        "packets_dropped": 57,
        "accuracy": 0.8,  # the mean of the replicas' 0.81 and 0.79
    }
    values = row(tmp_path, accuracy=0.8)
    assert {name: values[name] for name in expected} == pytest.approx(expected)


def without_gather(log: Path) -> None:
    """Rounds as programs mark them where they do not mark the legs."""
    with edited(log) as rounds:
        for record in rounds:
            del record["gather_s"], record["broadcast_s"]


def test_the_gather_of_a_round_that_was_hit_is_a_metric_of_its_own(tmp_path):
    run = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    values = load(tmp_path).per_run().row(0, named=True)
    assert values["gather_latency_s.burst_mean"] == pytest.approx(0.75)  # of rounds of 1 s
    without_gather(run / "events" / "rounds.jsonl")
    values = load(tmp_path).per_run().row(0, named=True)
    assert values["gather_latency_s.burst_mean"] is None
    assert values["round_latency_s.burst_mean"] == pytest.approx(1.0)


def test_tail_quantiles_need_enough_rounds(tmp_path):
    few = row(tmp_path / "few", rounds=19)
    assert few["round_latency_s.p95"] is None
    some = row(tmp_path / "some", rounds=99)
    assert some["round_latency_s.p95"] == pytest.approx(0.1)
    assert some["round_latency_s.p99"] is some["round_latency_s.p99_over_p50"] is None
    many = row(tmp_path / "many", rounds=101)  # sorted, position 99 of 0 to 100 is a slow one
    assert many["round_latency_s.p99"] == pytest.approx(1.0)
    assert many["round_latency_s.p99_over_p50"] == pytest.approx(1.0 / many["round_latency_s.p50"])


def test_an_own_kind_of_impairment_goes_by_its_name_and_not_by_its_place(tmp_path):
    run = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    for path in (run / "config.json", run / "events" / "impairments.jsonl"):
        path.write_text(path.read_text().replace('"burst"', '"/some/folder/mine.py:Flap"'))
    results = load(tmp_path)
    assert results.per_run().row(0, named=True)["impaired_latency_s.Flap"] == pytest.approx(1.0)
    assert set(results.frame("impairments")["kind"]) <= {"loss", "Flap"}
    assert kind_name("/some/folder/mine.py") == "mine"
    assert kind_name("link-down") == "link-down"


def test_a_round_that_two_kinds_hit_is_credited_to_neither(tmp_path):
    run = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    with edited(run / "events" / "rounds.jsonl") as rounds:
        rounds[4] |= {"impairments": ["loss-server", "background"], "latency_s": 7.0}
    values = load(tmp_path).per_run().row(0, named=True)
    together = [name for name in values if " + " in name]
    assert together == ["impaired_latency_s.burst + loss"]
    assert values[together[0]] == pytest.approx(7.0)
    assert values.get("impaired_latency_s.loss") != pytest.approx(7.0)


@pytest.mark.parametrize(
    ("received", "passes", "gather", "broadcast"),
    [(60, 3, 0.40, 0.35), (None, None, None, None)],
    ids=["chunks", "tcp"],
)
def test_loss_counts_receivers_and_passes_count_senders(
    tmp_path, received, passes, gather, broadcast
):
    values = row(tmp_path, received=received, passes=passes)
    assert values["realised_loss.gather"] == pytest.approx(gather)
    assert values["realised_loss.broadcast"] == pytest.approx(broadcast)
    assert values["passes_per_transfer"] == passes
    assert values["bytes_sent"] == 20 * 1000  # ten rounds, two senders


def test_a_log_that_lost_rounds_gives_no_totals(tmp_path):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    log = directory / "events" / "rounds.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    values = load(tmp_path).per_run().row(0, named=True)
    assert values["training_time_s"] is None
    assert values["bytes_sent"] is None
    assert values["round_latency_s.max"] is None
    assert values["round_latency_s.burst_mean"] == pytest.approx(1.0)


def shown(folder):
    results = load(folder)
    summary = summarise(results)
    return summary, main_table(summary), remarks.cautions(results, summary)


def test_a_target_counts_from_the_first_evaluation_that_reaches_it(tmp_path):
    # Replicas' means: 0.09 after round 0, 0.36 after 3, 0.63 after 6, 0.9 after 9.
    values = row(tmp_path, target=0.36, calm_s=0.1, compute_s=0.1)
    assert values["rounds_to_target"] == 4
    assert values["time_to_target_s"] == pytest.approx(4 * 0.2)
    assert values["target_reached"] == 1


def test_a_target_that_is_not_reached_is_told_and_has_no_time(tmp_path):
    values = row(tmp_path, target=0.95)
    assert values["time_to_target_s"] is None and values["rounds_to_target"] is None
    assert values["target_reached"] == 0
    _, table, _ = shown(tmp_path)
    labels = [line[0].text for line in table.rows]
    assert "Runs that reached the target (%)" in labels
    assert "Training time to the target (s)" not in labels


@pytest.mark.parametrize(
    ("metric", "other", "label"),
    [
        ("accuracy", "perplexity", "Accuracy of a linear model (%)"),
        ("perplexity", "accuracy", "Perplexity of bigrams (lower is better)"),
    ],
)
def test_what_a_trivial_model_reaches_stands_beside_the_result(tmp_path, metric, other, label):
    build = ResultsBuilder(tmp_path)
    runs = [build.run(arm=arm, seed=1, metric=metric) for arm in ("dblp", "fixed-low", "of-before")]
    for directory, baseline in zip(runs[:2], (0.8, None), strict=True):
        document = {"schema": 1, "baseline": baseline}
        (directory / "training.json").write_text(json.dumps(document))
    values = load(tmp_path).per_run().sort("arm")
    assert values[f"baseline_{metric}"].to_list() == [0.8, None, None]
    assert not values[f"baseline_{other}"].count()
    assert not any(run.problems for run in load(tmp_path).runs)
    labels = [line[0].text for line in shown(tmp_path)[1].rows]
    place = next(at for at, text in enumerate(labels) if f"Final test {metric}" in text)
    assert labels[place + 1] == label


def test_perplexity_takes_the_place_of_accuracy_and_falls_to_its_target(tmp_path):
    # It rises in the builder; a target of 1.2 is reached by the first value, 0.3.
    values = row(tmp_path, metric="perplexity", accuracy=3.0, target=1.2)
    assert values["perplexity"] == pytest.approx(3.0) and values["accuracy"] is None
    assert values["rounds_to_target"] == 1
    summary, table, _ = shown(tmp_path)
    assert summary["task_metric"] == "perplexity"
    labels = [line[0].text for line in table.rows]
    assert "Final test perplexity (lower is better)" in labels
    assert not any("accuracy" in label for label in labels)


def test_without_learning_the_table_says_why(tmp_path):
    row(tmp_path, pace={"kind": "payload-only", "compute_s": 0.0})
    summary, table, values = shown(tmp_path)
    assert summary["task_metric"] is None
    (accuracy,) = [line for line in table.rows if "accuracy" in line[0].text]
    assert "nothing is learnt" in accuracy[1].note
    assert any(caution.startswith("nothing is learnt") for caution in values)


def test_a_pace_is_printed_and_what_overran_it(tmp_path):
    values = row(tmp_path, pace={"kind": "paced", "compute_s": 0.05}, compute_s=0.05, calm_s=0.1)
    assert values["pace_overrun_share"] == pytest.approx(0.1)  # the first of ten iterations
    assert values["compute_to_communication"] == pytest.approx(10 * 0.05 / 2.8)
    _, table, sentences = shown(tmp_path)
    labels = [line[0].text for line in table.rows]
    assert "Computing over communicating, paced" in labels
    assert "Share of time in communication (%), paced" in labels
    assert any("computing takes 50.0 ms per iteration" in sentence for sentence in sentences)
    assert any(sentence.startswith("slower than the pace: up to 10.0 %") for sentence in sentences)


def test_effects_of_loss_are_averaged_and_the_divergence_is_the_last(tmp_path):
    values = row(tmp_path, layers=3, workers=2)
    assert values["relative_error.gathered"] == pytest.approx(0.1)
    assert values["relative_error.applied"] == pytest.approx(0.2)
    assert values["cosine.applied"] == pytest.approx(0.97)
    assert values["replica_divergence"] == pytest.approx(0.009)


def test_workers_do_not_weigh_more_than_one_that_has_no_value(tmp_path):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1, layers=2, workers=2)
    with edited(directory / "events" / "effects.jsonl") as records:
        records[0]["applied"]["worker-1"]["cosine"] = None
        records[0]["applied"]["worker-2"]["cosine"] = 0.5
    frame = measure.deviations(load(tmp_path).frame("effects"))
    assert frame["cosine.applied"].to_list()[:2] == pytest.approx([0.5, 0.97])


def test_the_parts_of_a_round_add_up_to_it(tmp_path):
    run = ResultsBuilder(tmp_path).run(arm="dblp", seed=1, rounds=2)
    with edited(run / "events" / "rounds.jsonl") as rounds:
        for record in rounds:
            record |= {"began_s": 0.0, "gather_began_s": 0.3, "gather_s": 0.4}
            record |= {"broadcast_began_s": 0.75, "broadcast_s": 0.2, "ended_s": 1.0}
            record |= {"gather_ended_s": 0.7, "iteration_s": 1.0}
    for worker, compute_s in ((1, 0.1), (2, 0.25)):
        lines = [{"round": n, "host": f"worker-{worker}", "compute_s": compute_s} for n in (0, 1)]
        write_lines(run / "events" / f"training-worker-{worker}.jsonl", lines)
    results = load(tmp_path)
    (line,) = round_time_table(results).rows
    shown = [(cell.text, cell.detail) for cell in line[1:]]
    assert shown == [
        *(("1.00", ""), ("0.175", "17.5 %"), ("0.400", "40.0 %"), ("0.100", "10.0 %")),
        *(("0.200", "20.0 %"), ("0.125", "12.5 %")),
    ]


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
    assert load(tmp_path).per_run()["perplexity"].to_list() == [pytest.approx(9.0), None]
    summary, _, sentences = shown(tmp_path)
    assert summary["arms"]["dblp"]["perplexity"]["n"] == 1
    assert "1 of 2 trainings end without a finite perplexity" in " ".join(sentences)
