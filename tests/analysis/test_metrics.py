"""One run's metrics, each worked out by hand from what the builder wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.data import metrics
from analysis.data.evidence import kind_name
from analysis.data.frames import per_run
from analysis.data.load import load
from tests.analysis.build import ResultsBuilder, edited


def row(tmp_path, **options):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1, **options)
    frame = per_run(load(tmp_path))
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
    values = per_run(load(tmp_path)).row(0, named=True)
    assert values["gather_latency_s.burst_mean"] == pytest.approx(0.75)  # of rounds of 1 s
    without_gather(run / "events" / "rounds.jsonl")
    values = per_run(load(tmp_path)).row(0, named=True)
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
    assert per_run(results).row(0, named=True)["impaired_latency_s.Flap"] == pytest.approx(1.0)
    assert set(results.frame("impairments")["kind"]) <= {"loss", "Flap"}
    assert kind_name("/some/folder/mine.py") == "mine"
    assert kind_name("package.module:Flap") == "Flap"
    assert kind_name("link-down") == "link-down"


def test_a_round_that_two_kinds_hit_is_credited_to_neither(tmp_path):
    run = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    with edited(run / "events" / "rounds.jsonl") as rounds:
        rounds[4] |= {"impairments": ["loss-server", "background"], "latency_s": 7.0}
    values = per_run(load(tmp_path)).row(0, named=True)
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
    values = per_run(load(tmp_path)).row(0, named=True)
    assert values["training_time_s"] is None
    assert values["bytes_sent"] is None
    assert values["round_latency_s.max"] is None
    assert values["round_latency_s.burst_mean"] == pytest.approx(1.0)


def test_a_run_without_any_log_has_no_metric_and_does_not_crash(tmp_path):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    for log in (directory / "events").iterdir():
        log.unlink()
    values = per_run(load(tmp_path)).row(0, named=True)
    assert {values[name] for name in ("accuracy", "bytes_sent", "round_latency_s.mean")} == {None}


def test_every_metric_describes_itself():
    for metric in metrics.METRICS:
        assert metrics.describe(metric.name) is metric
    assert metrics.describe("impaired_latency_s.loss").unit == "s"
    with pytest.raises(KeyError):
        metrics.describe("nonsense")
