"""The sampler beside real queues and connections, and what it leaves of a run."""

import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from analysis.data import logs
from testbed.lab import sandbox
from testbed.lab.kernel import namespaces
from testbed.lab.network import HostInfo
from testbed.shared.messages import Messages
from testbed.transport.wire import DATA_PORTS
from testbed.verdict import sampler as sampling
from tests.lab import link_trials
from tests.own_network import queue_statistics

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]
RATE_BPS = 20_000_000
QUEUE_BYTES = 60_000
TCP_BYTES = 1_500_000


def in_sandbox(request: dict[str, Any], _: Messages) -> dict[str, Any]:
    """Sample two hosts at a switch, a burst of UDP and a TCP transfer."""
    directory = Path(request["directory"])
    for name in ("logs", "events"):
        (directory / name).mkdir()
    built, switch = link_trials.switched(
        **{
            "server": {"rate_bps": RATE_BPS, "queue_bytes": QUEUE_BYTES},
            "worker-1": {"rate_bps": 1_000_000_000, "queue_bytes": 10_000_000},
        }
    )
    hosts = built.info.hosts
    # What hosts and the switch's own interface say unasked would be in one of two readings.
    ipv6_off = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
    ipv6_off.write_text("1")
    for host in hosts.values():
        with namespaces.entered(host.pid):
            ipv6_off.write_text("1")
    link_trials.ping(hosts["worker-1"], hosts["server"], count=1)
    switch.deepen_buffers()
    flows = {"hosts": list(hosts), "ports": DATA_PORTS, "centre": "server"}
    order = built.info.as_json() | {"flows": flows, "processes": {}, "run": {"key": "scene"}}
    with sampling.sampled(directory, order):
        _wait_for_samples(directory)
        _burst(hosts)
        time.sleep(0.3)
        noted = _transfer(hosts)
        time.sleep(0.1)
        noted |= {
            "switch": queue_statistics(link_trials.switch_port(built, "server")),
            "host": queue_statistics("worker-1-eth0", pid=hosts["worker-1"].pid),
        }
        time.sleep(0.05)
    return noted


def _wait_for_samples(directory: Path) -> None:
    deadline_s = time.monotonic() + 20
    while not (directory / "live.json").exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError((directory / "logs" / "sampler.log").read_text())
        time.sleep(0.01)


def _burst(hosts: Mapping[str, HostInfo]) -> None:
    """Five times what the queue holds."""
    sender = namespaces.socket_in(hosts["worker-1"].pid, socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(5 * QUEUE_BYTES // 1400):
        sender.sendto(bytes(1400), (hosts["server"].address, 9))


def _transfer(hosts: Mapping[str, HostInfo]) -> dict[str, Any]:
    listener = namespaces.socket_in(hosts["server"].pid, socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((hosts["server"].address, 47000))
    listener.listen()
    sender = namespaces.socket_in(hosts["worker-1"].pid, socket.AF_INET, socket.SOCK_STREAM)
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    sender.connect((hosts["server"].address, 47000))
    receiver, _ = listener.accept()
    got = 0

    def receive() -> None:
        nonlocal got
        while got < TCP_BYTES:
            got += len(receiver.recv(1 << 16))

    reading = threading.Thread(target=receive)
    reading.start()
    sender.sendall(bytes(TCP_BYTES))
    reading.join(30)
    time.sleep(0.1)  # the last acknowledgements
    info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (again,) = (int.from_bytes(info[100:104], sys.byteorder),)
    time.sleep(0.1)
    return {"retransmits": again, "received": got}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The samples of a burst and a TCP transfer, and what the kernel's own tools say of them."""
    folder = tmp_path_factory.mktemp("scene")
    return folder, sandbox.result_of(__name__, {"directory": str(folder)})


def directed(folder: Path, link: str, sender: str) -> pl.DataFrame:
    return logs.samples(folder, "queues").filter(link=link).filter(pl.col("from") == sender)


def max_of(frame: pl.DataFrame, column: str) -> float:
    return float(frame[column].to_numpy().max())


def counters(statistics: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [result] = [statistic for statistic in statistics if statistic["kind"] == kind]
    return result


def test_a_burst_fills_the_queue_to_its_limit_and_drops_agree_with_tc(scene):
    folder, noted = scene
    bottleneck = directed(folder, "server--s1", "s1")
    highest = max_of(bottleneck, "backlog_bytes")
    frame_bytes = 1442
    # HTB's root counts the packet that it holds in addition to those of the FIFO below it.
    low, high = QUEUE_BYTES - 2 * frame_bytes, QUEUE_BYTES
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
    assert noted["received"] == TCP_BYTES
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
    assert rate == pytest.approx(RATE_BPS, rel=0.25)
