"""Data files of flent: what they hold, and that flent itself reads them."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest

from analysis.data import samples
from testbed.cli import flent_files as flent
from testbed.shared.input_error import InputError
from tests.analysis.build import ResultsBuilder
from tests.analysis.test_timeline import add_times
from tests.cli.test_verbs import in_process

LATENCY = "Ping (ms) ICMP round latency (extra)"
QUEUE, FLOW = "qdisc_stats_s1->server", "UDP worker-1->server"


@pytest.fixture
def folder(tmp_path):
    """One run with samples, one without; rounds take about as long as the build says."""
    build = ResultsBuilder(tmp_path / "runs", experiment="small")
    run = build.run(arm="dblp", seed=1)
    for each in (run, build.run(arm="dblp", seed=2)):
        add_times(each)
    (run / "samples").mkdir()
    counts = dict.fromkeys(("backlog_packets", "sent_bytes", "sent_packets"), 0)
    queue = [
        {"t_s": t_s, "link": "server--s1", "from": "s1", "backlog_bytes": waits, "drops": drops}
        | counts
        for t_s, waits, drops in [(0.0, 1000, 5), (0.05, 3000, 5), (0.25, 0, 12)]
    ]
    pl.DataFrame(queue, schema=samples.QUEUES).write_parquet(run / "samples" / "queues.parquet")
    flow = {"t_s": 0.1, "host": "worker-1", "peer": "server", "kind": "udp", "rtt_s": 0.002}
    rows = [flow | {"rate_bps": 5e6}, flow | {"t_s": 0.2, "rate_bps": None}]
    pl.DataFrame(rows, schema=samples.FLOWS).write_parquet(run / "samples" / "flows.parquet")
    return build.folder


def test_a_file_holds_the_series_of_a_run_on_one_axis_and_as_they_were_sampled(folder, tmp_path):
    whole, rounds_alone = flent.export(folder, tmp_path / "series")
    assert whole.name.endswith(".flent.gz") and whole.parent == tmp_path / "series"
    document = json.loads(gzip.decompress(whole.read_bytes()))
    assert document["version"] == 4
    assert document["metadata"]["NAME"] == "ping"
    assert document["metadata"]["TEST_PARAMETERS"]["qdisc_stats_hosts"] == "s1->server"
    assert document["results"].keys() == document["raw_values"].keys() == {LATENCY, QUEUE, FLOW}
    steps = len(document["x_values"])
    assert {len(each) for each in document["results"].values()} == {steps}
    assert document["x_values"][:3] == [0.0, 0.1, 0.2]
    assert document["results"][QUEUE][:3] == [2.0, None, 0.0]
    queue, flow = document["raw_values"][QUEUE], document["raw_values"][FLOW]
    assert [each["dropped"] for each in queue] == [0, 0, 7]
    assert [round(each["t"] - queue[0]["t"], 6) for each in queue] == [0.0, 0.05, 0.25]
    assert flow[0]["val"] == 5.0 and flow[0]["tcp_rtt"] == 2.0
    assert "val" not in flow[1]
    latencies = document["raw_values"][LATENCY]
    assert json.loads(gzip.decompress(rounds_alone.read_bytes()))["results"].keys() == {LATENCY}
    rounds = (
        folder / whole.name.removesuffix(flent.SUFFIX) / "events" / "rounds.jsonl"
    ).read_text()
    first = json.loads(rounds.splitlines()[0])
    assert latencies[0]["val"] == pytest.approx(1e3 * first["latency_s"])


def test_the_verb_writes_new_files_alone(folder, tmp_path, monkeypatch, capsys):
    words = ("export", "small", "--out", folder.parent, "--flent", tmp_path / "series")
    status, out, _ = in_process(monkeypatch, capsys, *words)
    assert (status, out) == (0, f"2 data files for flent: {tmp_path / 'series'}\n")
    status, _, err = in_process(monkeypatch, capsys, *words)
    assert status == 2 and "exists; valid: another folder" in err
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no run has rounds or samples"):
        flent.export(tmp_path / "empty", tmp_path / "other")


def test_flent_reads_a_file(folder, tmp_path):
    resultset = pytest.importorskip("flent.resultset", reason="needs flent")
    path, _ = flent.export(folder, tmp_path / "series")
    read = resultset.load(str(path))
    assert set(read.series_names) == {LATENCY, QUEUE, FLOW}
    assert list(read.raw_series(QUEUE, raw_key="dropped"))[-1] == (pytest.approx(0.25), 7)
