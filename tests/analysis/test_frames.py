"""Results as data: which frames there are, what they hold, and what is read for them."""

from pathlib import Path

import polars as pl
import pytest

import analysis
from analysis.data.logs import FRAMES, LABELS, SAMPLES
from analysis.data.metrics import METRICS
from tests.analysis.build import ResultsBuilder

Q = "impairments.0.q"
LISTS = pl.List(pl.String)
LABELLED = ["run_key", "arm", "seed", f"factor.{Q}"]


def queues(link: str, backlog_bytes: int) -> pl.DataFrame:
    row = {"t_s": 1.0, "link": link, "from": "s1", "backlog_bytes": backlog_bytes}
    others = dict.fromkeys(("backlog_packets", "sent_bytes", "sent_packets", "drops"), 0)
    return pl.DataFrame([row | others], schema=FRAMES["queues"].schema)


@pytest.fixture
def folder(tmp_path):
    build = ResultsBuilder(tmp_path)
    for number, (arm, q, seed) in enumerate(
        (arm, q, seed) for arm in ("dblp", "tcp-cubic") for q in (0.5, 0.9) for seed in (1, 2)
    ):
        directory = build.run(
            arm=arm,
            seed=seed,
            factors={Q: q},
            burst_s=1.0 + number,
            layers=2,
            verdict="invalid" if number == 7 else "ok",
        )
        (directory / "samples").mkdir()
        path = directory / "samples" / "queues.parquet"
        queues(f"link-{number}", 100 * number).write_parquet(path)
    return tmp_path


def test_every_frame_of_the_registry_is_there_with_its_columns(folder):
    results = analysis.load(folder)
    assert [label.name for label in LABELS] == [*LABELLED[:3], "factor.NAME"]
    for name, described in FRAMES.items():
        frame = results.samples(name).collect() if name in SAMPLES else getattr(results, name)
        texts = {key: pl.String for key, kind in described.schema.items() if kind == LISTS}
        assert dict(frame.schema) == {
            **dict.fromkeys(LABELLED, pl.String),
            "seed": pl.Int64,
            **described.schema,
            **texts,
        }, name
        assert frame.write_csv().startswith("run_key,arm,seed,")  # no column is nested


def test_runs_has_all_planned_runs_and_metrics_the_ok_ones(folder):
    results = analysis.load(folder)
    assert results.runs["verdict"].to_list() == ["ok"] * 7 + ["invalid"]
    last = results.runs.row(-1, named=True)
    assert (last["arm"], last["seed"], last[f"factor.{Q}"]) == ("tcp-cubic", 2, "0.9")
    assert Path(last["directory"]).name == "tcp-cubic-s2-0.9"
    assert results.metrics["round_latency_s.max"].to_list() == [1.0 + index for index in range(7)]
    assert {metric.name for metric in METRICS} <= set(results.metrics.columns)
    assert repr(results) == "<results of quick: 7 ok, 1 invalid>"


def test_samples_are_read_as_far_as_they_are_asked_for(folder):
    results = analysis.load(folder)
    fullest = results.samples("queues").filter(pl.col("backlog_bytes") > 300)
    assert isinstance(fullest, pl.LazyFrame)
    assert fullest.collect()["link"].to_list() == ["link-4", "link-5", "link-6"]
    assert results.samples("flows").collect().is_empty()  # no run has any
    with pytest.raises(ValueError, match="samples 'queue'; valid: queues, flows, processes"):
        results.samples("queue")


def test_a_half_written_file_of_samples_is_refused_with_what_to_do(folder):
    path = folder / "quick" / "dblp-s1-0.9" / "samples" / "queues.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    results = analysis.load(folder)
    with pytest.raises(ValueError, match="half-written or damaged; delete it") as refused:
        results.samples("queues")
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    path.unlink()
    assert results.samples("queues").collect().height == 6


def test_samples_of_another_version_are_refused(folder):
    path = folder / "quick" / "dblp-s1-0.9" / "samples" / "queues.parquet"
    pl.read_parquet(path).rename({"backlog_bytes": "backlog"}).write_parquet(path)
    with pytest.raises(ValueError, match=r"has no column backlog_bytes; .* of another version"):
        analysis.load(folder).samples("queues")
