"""What was measured once is read, not measured again; and never where it may be wrong."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from analysis.data import kept_measures, measure
from analysis.data.load import load
from analysis.data.per_run import per_run
from analysis.report import writing
from tests.analysis.build import ResultsBuilder, edited

FACTOR = {"impairments.0.q": 0.9}


@pytest.fixture
def folder(tmp_path, undrawn):
    """Two runs whose report was written, so that their tables are kept."""
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, factors=FACTOR, layers=3)
    build.run(arm="tcp-cubic", seed=1, factors=FACTOR, rounds=9)
    writing.write_report(tmp_path)
    return tmp_path


@pytest.fixture
def measured_now(monkeypatch):
    """The keys of the runs whose logs are read from now on."""
    keys: list[str] = []
    real = measure.measure

    def counted(runs):
        keys.extend(run.key for run in runs)
        return real(runs)

    monkeypatch.setattr(measure, "measure", counted)
    return keys


def tables(folder: Path) -> dict[str, pl.DataFrame]:
    return load(folder).measured.tables


def test_kept_tables_are_what_measuring_gives(folder, measured_now):
    kept = load(folder)
    rows, path, problems = per_run(kept), kept.critical_path, [run.problems for run in kept.runs]
    assert measured_now == []
    for each in (folder / "quick" / ".measures").iterdir():
        each.unlink()
    again = load(folder)
    assert per_run(again).equals(rows)
    assert again.critical_path.equals(path)
    assert [run.problems for run in again.runs] == problems
    assert len(measured_now) == 2
    names = ("layer_loss", "host_cpu", "evaluations", "deviations", "gathered_loss", "impairments")
    for name in names:
        assert getattr(again, name).equals(getattr(kept, name)), name


def test_only_what_is_new_or_was_changed_is_measured(folder, measured_now):
    build = ResultsBuilder.__new__(ResultsBuilder)
    build.__dict__ |= {"experiment": "quick", "folder": folder / "quick", "arms": []}
    build.run(arm="dblp", seed=2, factors=FACTOR, burst_s=7.0, planned=False)
    with edited(folder / "quick" / "plan.json") as plan:
        plan["runs"].append({"key": "dblp-s2-0.9", "arm": "dblp", "seed": 2, "factors": FACTOR})
    assert tables(folder)["rounds"]["latency_s"].max() == 7.0
    assert measured_now == ["dblp-s2-0.9"]

    measured_now.clear()
    with edited(folder / "quick" / "dblp-s1-0.9" / "events" / "rounds.jsonl") as records:
        for record in records:
            record["latency_s"] = 8.5
    rows = per_run(load(folder))
    assert set(measured_now) == {"dblp-s1-0.9", "dblp-s2-0.9"}
    assert rows["round_latency_s.max"].to_list() == [8.5, 1.0, 7.0]

    writing.write_report(folder)
    measured_now.clear()
    (folder / "quick" / "tcp-cubic-s1-0.9").rename(folder / "elsewhere")
    assert set(tables(folder)["metrics"]["run_key"]) == {"dblp-s1-0.9", "dblp-s2-0.9"}
    assert measured_now == []


def test_a_log_of_the_same_length_with_another_time_is_read(folder, measured_now):
    log = folder / "quick" / "dblp-s1-0.9" / "events" / "rounds.jsonl"
    before = log.stat()
    text = log.read_text()
    log.write_text(text.replace('"latency_s": 0.1', '"latency_s": 0.3'))
    os.utime(log, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert log.stat().st_size == before.st_size
    assert per_run(load(folder))["round_latency_s.calm_mean"][0] == pytest.approx(0.3)


def test_tables_of_other_code_are_not_used(folder, measured_now, monkeypatch):
    monkeypatch.setattr(kept_measures, "_code", lambda: "another version")
    assert tables(folder)["metrics"].height == 2
    assert len(measured_now) == 2
    writing.write_report(folder)
    measured_now.clear()
    tables(folder)
    assert measured_now == []


@pytest.mark.parametrize("damage", ["cut", "gone", "other", "index", "no index"])
def test_tables_that_are_damaged_are_not_used(folder, measured_now, damage):
    place = folder / "quick" / ".measures"
    (table,) = place.glob("rounds-*.parquet")
    index = place / "index.json"
    if damage == "cut":  # a disk that was full
        table.write_bytes(table.read_bytes()[:-9])
    elif damage == "gone":
        table.unlink()
    elif damage == "other":
        table.write_bytes(bytes(table.stat().st_size))
    elif damage == "index":
        index.write_text(index.read_text()[:-40])
    else:
        index.unlink()
    assert tables(folder)["rounds"].height == 19
    assert len(measured_now) == 2
    writing.write_report(folder)
    assert len(list(place.iterdir())) == len(measure.TABLES) + 1  # nothing is left of the old ones
    measured_now.clear()
    tables(folder)
    assert measured_now == []


def test_a_folder_that_cannot_be_written_costs_time_alone(folder, measured_now, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    place = folder / "quick" / ".measures"
    names = {path.name for path in place.iterdir()}
    monkeypatch.setattr(kept_measures, "_code", lambda: "another version")
    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    assert writing.write_report(folder).verdicts["ok"] == 2
    assert {path.name for path in place.iterdir()} <= names


def test_what_was_wrong_with_a_log_is_said_again(tmp_path, undrawn, measured_now):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    log = directory / "events" / "transfers-server.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    (directory / "samples").mkdir()
    (directory / "samples" / "processes.parquet").write_bytes(b"PAR1 half")
    problems = [
        "events/transfers-server.jsonl: last line (line 20) is cut off",
        "samples/processes.parquet: cannot be read, it is half-written or damaged; delete it to go "
        "on without these samples, or measure the run again",
    ]
    assert writing.write_report(tmp_path).damaged == [("dblp-s1", problems)]
    measured_now.clear()
    assert writing.write_report(tmp_path).damaged == [("dblp-s1", problems)]
    assert measured_now == []


def test_nothing_is_kept_in_a_run_s_own_folder(tmp_path, undrawn):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    assert writing.write_report(directory).verdicts["ok"] == 1
    assert not list(tmp_path.rglob(".measures"))


def test_many_runs_are_read_as_one_by_one(tmp_path, monkeypatch):
    build = ResultsBuilder(tmp_path)
    for seed in range(5):
        build.run(arm="dblp", seed=seed, burst_s=1.0 + seed)
    together = load(tmp_path)
    assert together.rounds.height == 50
    assert per_run(together)["round_latency_s.max"].to_list() == [1.0, 2.0, 3.0, 4.0, 5.0]
    monkeypatch.setattr("analysis.data.logs._AT_ONCE", 1)
    alone = load(tmp_path)
    assert alone.rounds.equals(together.rounds)
    assert alone.transfers.equals(together.transfers)
    assert_frame_equal(per_run(alone), per_run(together))  # but for the order of sums
