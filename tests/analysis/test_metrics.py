"""One run's metrics, each worked out by hand from what the builder wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.data import metrics
from analysis.data.evidence import kind_name
from analysis.data.load import load
from analysis.data.per_run import per_run
from tests.analysis.build import ResultsBuilder


def row(tmp_path, **options):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1, **options)
    frame = per_run(load(tmp_path))
    assert frame.height == 1
    return frame.row(0, named=True)


def test_latency_and_time(tmp_path):
    found = row(tmp_path)  # eight calm rounds of 0.1 s, two of 1 s, each with 0.05 s of compute
    assert found["training_time_s"] == pytest.approx(0.8 + 2 + 10 * 0.05)
    assert found["rounds_per_s"] == pytest.approx(10 / 3.3)
    assert found["round_latency_s.mean"] == pytest.approx(0.28)
    assert found["round_latency_s.p50"] == pytest.approx(0.1)
    assert found["round_latency_s.max"] == pytest.approx(1.0)
    assert found["round_latency_s.burst_mean"] == pytest.approx(1.0)
    assert found["round_latency_s.calm_mean"] == pytest.approx(0.1)
    assert found["communication_share"] == pytest.approx(2.8 / 3.3)
    assert found["burst_tolerance.gather"] == pytest.approx(0.1)
    assert found["critical_share"] == pytest.approx(0.1)


def without_gather(log: Path) -> None:
    """Rounds as programs mark them where they do not mark the legs."""
    rounds = [json.loads(line) for line in log.read_text().splitlines()]
    for each in rounds:
        del each["gather_s"], each["broadcast_s"]
    log.write_text("".join(json.dumps(each) + "\n" for each in rounds))


def test_the_gather_of_a_round_that_was_hit_is_a_metric_of_its_own(tmp_path):
    run = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    found = per_run(load(tmp_path)).row(0, named=True)
    assert found["gather_latency_s.burst_mean"] == pytest.approx(0.75)  # of rounds of 1 s
    without_gather(run / "events" / "rounds.jsonl")
    found = per_run(load(tmp_path)).row(0, named=True)
    assert found["gather_latency_s.burst_mean"] is None
    assert found["round_latency_s.burst_mean"] == pytest.approx(1.0)


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
    assert per_run(results).row(0, named=True)["impaired_latency_s.Flap"] == pytest.approx(1.0)
    assert set(results.impairments["kind"]) <= {"loss", "Flap"}
    assert kind_name("/some/folder/mine.py") == "mine"
    assert kind_name("package.module:Flap") == "Flap"
    assert kind_name("link-down") == "link-down"


def test_kinds_of_impairment_are_told_apart(tmp_path):
    found = row(tmp_path)
    assert found["impaired_latency_s.loss"] == pytest.approx(1.0)
    assert found["impaired_latency_s.burst"] == pytest.approx(1.0)
    assert found["packets_dropped"] == 57


def test_a_round_that_two_kinds_hit_is_credited_to_neither(tmp_path):
    run = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    path = run / "events" / "rounds.jsonl"
    rounds = [json.loads(line) for line in path.read_text().splitlines()]
    labels = {label: each for each in rounds for label in each["impairments"]}
    (first, both), (second, _) = labels.items()
    for label in set(labels) - {first}:
        both["impairments"].append(label)
    both["latency_s"] = 7.0
    path.write_text("".join(json.dumps(each) + "\n" for each in rounds))
    found = per_run(load(tmp_path)).row(0, named=True)
    together = [name for name in found if " + " in name]
    assert together == ["impaired_latency_s.burst + loss"]
    assert found[together[0]] == pytest.approx(7.0)
    assert found.get("impaired_latency_s.loss") != pytest.approx(7.0)
    assert first != second


def test_loss_counts_receivers_and_passes_count_senders(tmp_path):
    found = row(tmp_path, received=60, passes=3)
    assert found["realised_loss.gather"] == pytest.approx(0.40)
    assert found["realised_loss.broadcast"] == pytest.approx(0.35)
    assert found["passes_per_transfer"] == 3
    assert found["bytes_sent"] == 20 * 1000  # ten rounds, two senders


def test_tcp_has_no_chunks_and_no_passes(tmp_path):
    found = row(tmp_path, received=None, passes=None)
    assert found["realised_loss.gather"] is None
    assert found["passes_per_transfer"] is None
    assert found["bytes_sent"] == 20 * 1000


def test_accuracy_is_the_mean_of_the_replicas_at_the_last_evaluation(tmp_path):
    assert row(tmp_path, accuracy=0.8)["accuracy"] == pytest.approx(0.8)  # 0.81 and 0.79


def test_a_log_that_lost_rounds_gives_no_totals(tmp_path):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    log = directory / "events" / "rounds.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    found = per_run(load(tmp_path)).row(0, named=True)
    assert found["training_time_s"] is None
    assert found["bytes_sent"] is None
    assert found["round_latency_s.max"] is None
    assert found["round_latency_s.burst_mean"] == pytest.approx(1.0)


def test_a_run_without_any_log_has_no_metric_and_does_not_crash(tmp_path):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    for log in (directory / "events").iterdir():
        log.unlink()
    found = per_run(load(tmp_path)).row(0, named=True)
    assert {found[name] for name in ("accuracy", "bytes_sent", "round_latency_s.mean")} == {None}


def test_every_metric_describes_itself():
    for metric in metrics.METRICS:
        assert metrics.describe(metric.name) is metric
    assert metrics.describe("impaired_latency_s.loss").unit == "s"
    with pytest.raises(KeyError):
        metrics.describe("nonsense")
