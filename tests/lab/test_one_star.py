"""What a network does to packets, in one star whose switch sends to the server at half the rate."""

from __future__ import annotations

import json
import socket
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.lab.kernel.link_counters import offered
from testbed.lab.kernel.namespaces import entered, socket_in
from tests.lab.lab_under_test import Flow, LabUnderTest, running_lab

pytestmark = pytest.mark.lab

FIRST, LAST = 47000, 47999  # the workload's data ports
SERVER_RATE_BPS = 50e6
REPLAY = {
    "kind": "trace",
    "name": "recorded",
    "link": ["s1", "server"],
    "rounds": [0],
    "changes": {
        "t_s": [0, 0.8, 1.6],
        "rate_bps": [20e6, 4e6, 20e6],
        "delay_s": [0.005, 0.04, 0.005],
        "loss": [0, 0, 1],
    },
    "length_s": 2.4,
    "duration_s": 2.2,
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabUnderTest]:
    star = {"name": "star", "workers": 3, "rate_bps": 100_000_000, "queue_bytes": 60_000}
    star["links"] = {"server--s1": {"rate_bps": int(SERVER_RATE_BPS)}}
    with running_lab(tmp_path_factory.mktemp("star"), [REPLAY], topology=star) as running:
        yield running


def test_what_an_overfull_queue_loses_is_what_it_counts(lab: LabUnderTest):
    """A full queue of a switch port refuses single packets, and not the rest of a batch."""
    senders, packets = ("worker-1", "worker-2", "worker-3"), 4000
    # A late sender catches up, and may then fill the queue of its own link.
    outputs = [lab.interface("s1", "server"), *(lab.interface(each, "s1") for each in senders)]
    before = [offered(interface, pid)[1] for pid, interface in outputs]
    flows = [Flow(lab, sender, "server", 47100 + n) for n, sender in enumerate(senders)]
    # None needs more than its own link has, and three are too many for the server's.
    sending = {"payload_bytes": 1400, "rate_bps": 35e6}
    threads = [
        threading.Thread(target=each.send, args=(packets,), kwargs=sending) for each in flows
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = sum(len(each.received()) for each in flows)
    after = [offered(interface, pid)[1] for pid, interface in outputs]
    refused = [late - early for early, late in zip(before, after, strict=True)]
    for each in flows:
        with each:
            pass
    assert refused[0] > 20  # three senders in one Python process are late at times
    assert received + sum(refused) == 3 * packets


def ports_given(pid: int, address: str, kind: socket.SocketKind, count: int) -> set[int]:
    """Ports that the kernel gives to sockets which are all open at once."""
    opened = [socket_in(pid, socket.AF_INET, kind) for _ in range(count)]
    try:
        for each in opened:
            each.bind((address, 0))
        return {each.getsockname()[1] for each in opened}
    finally:
        for each in opened:
            each.close()


def test_no_host_gives_a_data_port_to_a_socket_that_asked_for_none(lab: LabUnderTest):
    assert lab.network["data_ports"] == [FIRST, LAST]
    data_ports = set(range(FIRST, LAST + 1))
    for name in ("server", "worker-1"):
        pid, address = lab.host_pid(name), lab.address(name)
        with entered(pid):
            bounds = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        low, high = map(int, bounds)
        assert low <= FIRST <= LAST <= high, "else this proves nothing"
        # A third of the range: without the reservation 350 of them would lie in it.
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            ports = ports_given(pid, address, kind, 10_000)
            assert len(ports) == 10_000
            assert not ports & data_ports
        with socket_in(pid, socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.bind((address, FIRST))  # who asks for one gets it


def test_a_trace_changes_rate_delay_and_loss_as_probes_see_it(lab: LabUnderTest):
    with lab.flow("worker-1", "server") as flow:
        lab.begin(0)
        sent, arrived = flow.timed(2.0, payload_bytes=1208, rate_bps=8e6)
        record = lab.ended("recorded")
        begun = [each for each in lab.events("recorded") if each["action"] == "begin"][-1]
        lab.end(0)
        sent_then = flow.send(500)
        assert flow.received() == sent_then
    began_s = begun["acknowledged_s"]
    at_first = [each for each, at_s in sent.items() if at_s < began_s + 0.7]
    waited_s = statistics.median(arrived[each] - sent[each] for each in at_first)
    assert waited_s == pytest.approx(0.0055, abs=0.002)
    # At half the rate that is offered, a queue grows.
    slow = [at_s for at_s in arrived.values() if began_s + 0.95 < at_s < began_s + 1.55]
    assert len(slow) * 1250 * 8 / 0.6 == pytest.approx(4e6, rel=0.1)
    just_then = [each for each, at_s in sent.items() if 0.81 < at_s - began_s < 0.83]
    assert min(arrived[each] - sent[each] for each in just_then) > 0.04
    # Once the queue is empty, nothing arrives.
    assert not [each for each, at_s in sent.items() if at_s > began_s + 1.85 and each in arrived]
    assert record["details"]["changes"] == 3
    assert record["details"]["late_max_s"] < 0.02
    lines = (lab.records / "traces.jsonl").read_text().splitlines()[-4:]
    changes = [json.loads(line) for line in lines]
    assert [each["rate_bps"] for each in changes] == [20e6, 4e6, 20e6, SERVER_RATE_BPS]
    planned_s = [each["planned_s"] - began_s for each in changes[1:3]]
    assert planned_s == pytest.approx([0.8, 1.6], abs=1e-4)
