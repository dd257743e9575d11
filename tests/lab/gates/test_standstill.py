"""What passes between two looks: a part that is stopped, a queue that falls, a filter."""

from __future__ import annotations

import re
import time

import psutil
import pytest

from tests.lab.conftest import OkOrStalled
from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab


def pause(processes: list[psutil.Process], stopped_s: float) -> None:
    for each in processes:
        each.suspend()
    time.sleep(stopped_s)
    for each in processes:
        each.resume()


FILTER = (
    "add table ip leak; add chain ip leak hole { type filter hook input priority 0; }; "
    "add rule ip leak hole meta length > 500 numgen random mod 5 0 drop"
)


def test_a_switch_that_is_stopped_a_queue_that_falls_and_a_host_s_filter_are_found(
    wrong_lab: WrongLab,
):
    def disturb(lab: RunningLab) -> None:
        pause([lab.process("ovs-vswitchd")], 0.1)
        queue = ["qdisc", "change", "dev", "s1-eth1", "parent", "1:10", "handle", "10:", "bfifo"]
        lab.run_in(lab.switches(), "tc", *queue, "limit", "20000")
        lab.run_in(lab.host("server"), "nft", FILTER)
        time.sleep(1)
        lab.run_in(lab.switches(), "tc", *queue, "limit", "150000")
        lab.run_in(lab.host("server"), "nft", "delete table ip leak")

    results = wrong_lab.run(meanwhile=disturb)
    gate = assert_invalid(results, "standstill_s", where="ovs-vswitchd stopped in round")
    assert 0.05 < gate["value"] < 0.2
    where = "server--s1 from s1: queue_bytes 20000 in place of 150000 in round"
    assert assert_invalid(results, "link_settings", where=where)["value"] == 1
    gate = assert_invalid(results, "conservation", where="the kernel of server")
    assert 0.005 < gate["value"] < 0.2


@pytest.mark.long
def test_a_sandbox_that_is_stopped_is_found(wrong_lab: WrongLab):
    def stop_all(lab: RunningLab) -> None:
        supervisor = lab.process("testbed.run.supervisor")
        pause([supervisor, *supervisor.children(recursive=True)], 0.3)

    gate = assert_invalid(
        wrong_lab.run(meanwhile=stop_all, rounds=26), "standstill_s", where="the whole sandbox"
    )
    assert 0.25 < gate["value"] < 0.6


@pytest.mark.long  # tests/verdict/test_standstill.py, tests/sampling/test_processes.py
def test_a_worker_that_is_stopped_is_named_in_a_run_that_counts(
    wrong_lab: WrongLab, ok_or_stalled: OkOrStalled
):
    def stop_worker(lab: RunningLab) -> None:
        pause([lab.trainer("worker-2")], 2)

    results = wrong_lab.run(meanwhile=stop_worker, rounds=26)
    ok_or_stalled(results.verdict())
    reason = results.verdict()["reason"]
    assert re.search(r"worker-2 stood still for (1\.9|2\.[012]) s in round \d", reason), reason
