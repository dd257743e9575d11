"""The sampler beside real queues and connections, and what it leaves of a run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from analysis.data import samples
from testbed.lab import sandbox
from tests.lab import sampling_scene
from tests.lab.conftest import SMALL, training_has_begun, wait_for
from tests.lab.test_run import RELIABLE

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The samples of a burst and a TCP transfer, and what the kernel's own tools say of them."""
    folder = tmp_path_factory.mktemp("scene")
    with (folder / "errors").open("wb") as errors:
        process = sandbox.start(
            "tests.lab.sampling_scene", str(folder), stdout=subprocess.PIPE, stderr=errors.fileno()
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    sandbox.stop(process)
    assert line, (folder / "errors").read_text()
    return folder, json.loads(line)


def directed(folder: Path, link: str, sender: str) -> pl.DataFrame:
    return samples.queues(folder).filter(link=link).filter(pl.col("from") == sender)


def max_of(frame: pl.DataFrame, column: str) -> float:
    return float(frame[column].to_numpy().max())


def min_of(frame: pl.DataFrame, column: str) -> float:
    return float(frame[column].to_numpy().min())


def counters(statistics: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [each for each in statistics if each["kind"] == kind]
    return found


def test_a_burst_fills_the_queue_to_its_limit_and_drops_agree_with_tc(scene):
    folder, noted = scene
    bottleneck = directed(folder, "server--s1", "s1")
    highest = max_of(bottleneck, "backlog_bytes")
    frame_bytes = 1442
    # HTB's root counts the packet that it holds in addition to those of the FIFO below it.
    low, high = sampling_scene.QUEUE_BYTES - 2 * frame_bytes, sampling_scene.QUEUE_BYTES
    assert low <= highest <= high + 1514
    assert max_of(bottleneck, "backlog_packets") == pytest.approx(highest / frame_bytes, abs=3)
    assert bottleneck["backlog_bytes"][-1] == 0
    fifo, root = counters(noted["switch"], "bfifo"), counters(noted["switch"], "htb")
    assert fifo["drops"] > 100
    assert bottleneck["drops"][-1] == fifo["drops"]
    assert bottleneck["sent_bytes"][-1] == root["bytes"]
    assert bottleneck["sent_packets"][-1] == root["packets"]
    other = directed(folder, "worker-1--s1", "worker-1")
    assert other["sent_bytes"][-1] == counters(noted["host"], "htb")["bytes"]
    assert other["drops"][-1] == 0


def test_samples_come_at_the_asked_rate_and_say_what_they_cost(scene):
    folder, _ = scene
    facts = samples.sampler(folder)
    assert facts["asked_hz"] == 100
    # A machine that is busy with other things loses some: then they are counted.
    expected = facts["ticks"] + facts["samples_lost"]
    assert expected == pytest.approx((facts["ended_s"] - facts["began_s"]) * 100, abs=3)
    bottleneck = directed(folder, "server--s1", "s1")
    assert bottleneck.height == facts["ticks"]
    gaps = np.diff(bottleneck["t_s"].to_numpy())
    assert (gaps > 0).all()
    assert gaps.max() <= facts["largest_gap_s"] + 0.01
    assert 0 < facts["cpu_share"] < 0.3
    assert not facts["problems"]
    assert all(part["errors"] == 0 for part in facts["parts"].values())


def test_state_of_a_kernel_tcp_connection_is_sampled(scene):
    folder, noted = scene
    assert noted["received"] == sampling_scene.TCP_BYTES
    flow = samples.flows(folder).filter(host="worker-1", peer="server")
    assert flow["kind"].unique().to_list() == ["tcp"]
    assert flow["leg"].unique().to_list() == ["gather"]
    assert flow["retransmits"][-1] == noted["retransmits"]
    assert noted["retransmits"] > 0
    # A full queue of 60 kB at 20 Mbit/s is 24 ms long; an empty one takes less than 1 ms. A busy
    # machine may keep a single segment for longer.
    assert max_of(flow, "rtt_s") > 0.012
    assert float(np.median(flow["rtt_s"].to_numpy())) < 0.06
    assert max_of(flow, "cwnd_bytes") > 20_000
    assert min_of(flow, "cwnd_bytes") < 0.75 * max_of(flow, "cwnd_bytes")  # reno halves it
    rate = float(np.median(flow.filter(pl.col("rate_bps") > 0)["rate_bps"].to_numpy()))
    assert rate == pytest.approx(sampling_scene.RATE_BPS, rel=0.25)


def test_a_burst_overflows_the_queue_the_transfer_survives_and_samples_tell_of_it(run_small):
    """And the run leaves complete samples of queues, flows and processes."""
    burst = {"kind": "burst", "host": "server", "leg": "gather", "rounds": [2], "rate_factor": 4}
    results = run_small(arms={"dblp": RELIABLE}, impairments=[burst | {"duration_s": 0.2}])
    results.assert_trained()
    begin, end = results.events("impairments")
    assert (begin["action"], end["action"]) == ("begin", "end")
    # In whole clumps of five.
    frames = 4 * SMALL["topology"]["rate_bps"] * 0.2 / (1514 * 8)
    assert end["frames_sent"] == pytest.approx(frames, abs=5)
    # A queue of 150 kB and a link that drains a quarter meanwhile cannot hold the rest.
    assert end["dropped"] > 0.5 * end["frames_sent"]
    for each in results.events("transfers-server"):
        if each["leg"] == "gather":
            assert each["chunks_received"] == each["chunk_count"]
    run = results.run()
    assert sorted(path.name for path in (run / "samples").iterdir()) == [
        *("flows.parquet", "processes.parquet", "queues.parquet", "sampler.json")
    ]
    assert not (run / "live.json").exists()
    rounds = results.events("rounds")
    hit = rounds[2]
    queue = directed(run, "server--s1", "s1")
    assert min_of(queue, "t_s") < rounds[0]["began_s"]
    assert max_of(queue, "t_s") > rounds[-1]["ended_s"]
    during = queue.filter(pl.col("t_s").is_between(hit["gather_began_s"], hit["ended_s"]))
    before = queue.filter(pl.col("t_s").is_between(rounds[0]["began_s"], rounds[1]["ended_s"]))
    assert max_of(during, "backlog_bytes") > 0.9 * 150_000
    assert max_of(before, "backlog_bytes") < 0.6 * 150_000
    flows = samples.flows(run)
    assert set(flows.select("host", "peer").iter_rows()) == {
        *(("worker-1", "server"), ("worker-2", "server")),
        *(("server", "worker-1"), ("server", "worker-2")),
    }
    assert flows["kind"].unique().to_list() == ["udp"]
    assert min_of(flows, "rate_bps") > 10_000_000  # half of 100 Mbit/s, with some room
    busy = samples.processes(run).group_by("name").agg(pl.col("cpu_s").max(), pl.len())
    names = set(busy["name"])
    assert {"server", "worker-1", "worker-2", "controller", "ovs-vswitchd", "sampler"} <= names
    assert busy.filter(name="worker-1")["cpu_s"][0] > 0


@pytest.mark.long
def test_a_killed_run_leaves_whole_files_or_none(command, tmp_path):
    process = command(rounds=500)
    wait_for(lambda: training_has_begun(tmp_path))
    [live] = wait_for(lambda: list(tmp_path.rglob("live.json")))
    assert json.loads(live.read_text())["run"]["arm"] == "dblp"
    process.kill()
    process.wait()
    left = list((live.parent / "samples").rglob("*"))
    assert not [path for path in left if path.suffix == ".parquet"]
    for path in left:
        if path.suffix == ".npy" and not path.name.startswith("."):
            assert len(np.load(path, allow_pickle=False))
    assert samples.queues(live.parent).is_empty()
    json.loads(live.read_text())
