"""The timeline page: what it holds, and that nothing short is lost and nothing leaks out."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data.load import load
from analysis.report import timeline
from analysis.report.writing import write_report
from tests.analysis.build import ResultsBuilder, edited, write, write_lines

ORIGIN_S = 5000.0
_DATA = re.compile(r'<script type="application/json" class="run">(.*?)</script>', re.DOTALL)


def shown(page: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in _DATA.findall(page)]


def page_of(folder: Path) -> str:
    page, keys = timeline.timeline_page(load(folder))
    assert keys == {run["key"] for run in shown(page)}
    return page


def add_times(run: Path) -> None:
    """Add the times that a real run's rounds have, and those of the builder lack."""
    with edited(run / "events" / "rounds.jsonl") as rounds:
        for number, record in enumerate(rounds):
            record |= {"began_s": ORIGIN_S + number, "ended_s": ORIGIN_S + number + 0.9}


def add_samples(run: Path, *, name: str = "server--s1") -> None:
    """Queues sampled 100 times a second: one sample of one millisecond sees 120 kB and 7 drops."""
    (run / "samples").mkdir()
    at, sender = 333, name.partition("--")[2]
    numbers = pl.DataFrame({"number": range(1000)})
    number, is_full = pl.col("number"), pl.col("number") == at
    times = numbers.with_columns(t_s=ORIGIN_S + number / 100)
    times.with_columns(
        pl.lit(sender).alias("from"),
        link=pl.lit(name),
        backlog_bytes=pl.when(is_full).then(120_000).otherwise(0),
        backlog_packets=pl.when(is_full).then(80).otherwise(0),
        sent_bytes=number,
        sent_packets=number,
        drops=5 + 7 * (number >= at).cast(pl.Int64),
    ).write_parquet(run / "samples" / "queues.parquet")
    empty = dict.fromkeys(("cwnd_bytes", "port", "peer_port", "acked_bytes"))
    texts = {"host": "worker-1", "peer": "server", "leg": "gather", "kind": "udp"}
    times.with_columns(
        **{key: pl.lit(text) for key, text in texts.items()},
        **{key: pl.lit(value, pl.Float64) for key, value in empty.items()},
        rtt_s=0.001 + number * 1e-6,
        rate_bps=pl.lit(3e7),
        retransmits=pl.lit(0.0),
    ).write_parquet(run / "samples" / "flows.parquet")
    links = [{"link": name, "from": sender, "queue_bytes": 150_000, "rate_bps": 10**8}]
    facts = {"reached_hz": 99.9, "cpu_share": 0.02, "directed_links": links}
    write(run / "samples" / "sampler.json", facts)


def test_one_sample_of_a_full_queue_and_its_drops_stay_visible(tmp_path):
    builder = ResultsBuilder(tmp_path)
    run = builder.run(arm="dblp", seed=1)
    add_times(run)
    add_samples(run)
    [data] = shown(page_of(tmp_path))
    [queue] = data["queues"]
    assert queue["name"] == "s1 \u2192 server"
    assert queue["highest"] == 120_000
    assert queue["limit"] == 150_000
    assert queue["dropped"] == 7  # the 5 from before do not count
    [(place, count)] = queue["drops"]
    assert count == 7
    assert abs(place * data["step"] - 10 / 3) < 0.02
    assert data["rates"][0]["values"][0][1:] == [3e7, 3e7]  # one that never changes is drawn whole
    assert data["rates"][0]["values"][0][0] < data["rates"][0]["values"][-1][0]
    peak = [place for place, _, highest in queue["bytes"] if highest == 120_000]
    assert [round(place * data["step"], 1) for place in peak] == [3.3]


def test_rounds_workers_and_impairments_lie_on_the_same_axis(tmp_path):
    run = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    add_times(run)
    add_samples(run)
    record = {"name": "loss-server", "kind": "loss", "host": "server", "round": 4}
    write_lines(
        run / "events" / "impairments.jsonl",
        [
            {**record, "action": action, "planned_s": ORIGIN_S + planned_s}
            | {"acknowledged_s": ORIGIN_S + done_s}
            for action, planned_s, done_s in (
                ("begin", 4, 4.002),
                ("end", 4.5, 4.501),
                ("begin", 8, 8.002),
            )
        ],
    )
    transfer = {"round": 4, "host": "worker-1", "peer": "server"}
    gather = {"leg": "gather", "began_s": ORIGIN_S + 4.1, "ended_s": ORIGIN_S + 4.4}
    write_lines(run / "events" / "transfers-worker-1.jsonl", [transfer | gather])
    [data] = shown(page_of(tmp_path))
    assert data["rounds"][4][:4] == [4, 4.0, 4.9, 1.0]
    [impairment] = data["impairments"]
    assert impairment["bars"][0] == [4.0, 4.002, 4.5, 4.501]
    assert impairment["bars"][1][:2] == [8.0, 8.002]  # was in force at the end
    assert impairment["bars"][1][3] == data["duration"]
    worker = next(bars for bars in data["workers"] if bars["name"] == "worker-1")
    assert [1, 4.1, 4.4, 4] in worker["bars"]
    assert [0, 4.0, 4.05, 4] in worker["bars"]  # compute begins with the round
    [round_trip] = data["round_trips"]
    assert round_trip["name"] == "worker-1 \u2192 server"
    assert not data["windows"]


def test_of_a_script_for_torchrun_the_host_server_has_bars_too(tmp_path):
    builder = ResultsBuilder(tmp_path)
    for arm, config in (("trained", {}), ("script", {"workload": {"kind": "programs"}})):
        run = builder.run(arm=arm, seed=1, config=config)
        add_times(run)
        transfer = {"round": 4, "leg": "gather", "host": "server", "peer": "rank-1"}
        times = {"began_s": ORIGIN_S + 4.1, "ended_s": ORIGIN_S + 4.4}
        write_lines(run / "events" / "transfers-server.jsonl", [transfer | times])
    pages = shown(page_of(tmp_path))
    names = {data["arm"]: {worker["name"] for worker in data["workers"]} for data in pages}
    assert names["script"] - names["trained"] == {"server"}


def test_the_page_loads_nothing_and_names_cannot_break_out_of_it(tmp_path):
    builder = ResultsBuilder(tmp_path)
    run = builder.run(arm="</script><img>", seed=1, key="odd-s1")
    add_times(run)
    add_samples(run, name="server--</script><script>alert(1)")
    page = page_of(tmp_path)
    [data] = shown(page)
    assert data["arm"] == "</script><img>"
    assert "alert(1)" in data["queues"][0]["name"]
    assert "<img" not in page
    assert "<script>alert" not in page
    without_data = _DATA.sub("", page)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttp|\ssrc=", without_data)


def test_report_has_the_page_and_a_link_only_if_there_is_something_to_show(tmp_path, undrawn):
    builder = ResultsBuilder(tmp_path)
    run = builder.run(arm="dblp", seed=1)
    paths = write_report(tmp_path)
    assert not (paths.index.parent / "timeline.html").exists()
    assert 'href="timeline.html' not in paths.index.read_text()
    add_times(run)  # an older run: rounds with times, no samples
    paths = write_report(tmp_path)
    assert 'href="timeline.html"' in paths.index.read_text()
    [data] = shown((paths.index.parent / "timeline.html").read_text())
    assert data["queues"] == []
    assert len(data["rounds"]) == 10


def test_the_pages_size_is_bounded_by_leaving_out_later_seeds(tmp_path, monkeypatch):
    builder = ResultsBuilder(tmp_path)
    for seed in (1, 2, 3):
        for arm in ("dblp", "fixed-low"):
            add_times(run := builder.run(arm=arm, seed=seed))
            add_samples(run)
    whole = page_of(tmp_path)
    assert len(shown(whole)) == 6
    monkeypatch.setattr(timeline, "_MOST_POINTS", 3 * timeline._FEWEST_POINTS)
    page = page_of(tmp_path)
    assert {run["key"] for run in shown(page)} == {"dblp-s1", "dblp-s2", "fixed-low-s1"}
    assert "3 more runs are left out" in page
    assert len(page) < len(whole) / 2
