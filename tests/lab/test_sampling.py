"""The sampler beside real queues and connections, and what it leaves of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from analysis.data import logs
from testbed.lab import sandbox
from tests.lab import sampling_scene

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The samples of a burst and a TCP transfer, and what the kernel's own tools say of them."""
    folder = tmp_path_factory.mktemp("scene")
    return folder, sandbox.result_of("tests.lab.sampling_scene", {"directory": str(folder)})


def directed(folder: Path, link: str, sender: str) -> pl.DataFrame:
    return logs.samples(folder, "queues").filter(link=link).filter(pl.col("from") == sender)


def max_of(frame: pl.DataFrame, column: str) -> float:
    return float(frame[column].to_numpy().max())


def counters(statistics: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [statistic for statistic in statistics if statistic["kind"] == kind]
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
    facts = logs.sampler(folder)
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
    flow = logs.samples(folder, "flows").filter(host="worker-1", peer="server")
    assert flow["kind"].unique().to_list() == ["tcp"]
    assert flow["leg"].unique().to_list() == ["gather"]
    assert flow["retransmits"][-1] == noted["retransmits"]
    assert noted["retransmits"] > 0
    # A full queue of 60 kB at 20 Mbit/s is 24 ms long; an empty one takes less than 1 ms. A busy
    # machine may keep a single segment for longer.
    assert max_of(flow, "rtt_s") > 0.012
    assert float(np.median(flow["rtt_s"].to_numpy())) < 0.06
    windows_bytes = flow["cwnd_bytes"].to_numpy()
    assert windows_bytes.max() > 20_000
    assert windows_bytes.min() < 0.75 * windows_bytes.max()  # reno halves it
    rate = float(np.median(flow.filter(pl.col("rate_bps") > 0)["rate_bps"].to_numpy()))
    assert rate == pytest.approx(sampling_scene.RATE_BPS, rel=0.25)
