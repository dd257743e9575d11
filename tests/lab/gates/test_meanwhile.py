"""Labs that are broken from outside while they train: each time a gate says what and where."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from testbed.lab.delay.relay_client import RelayClient
from testbed.lab.kernel.process_status import sockets_of
from testbed.lab.sandbox import PRIVATE_DIRECTORY
from tests.lab.conftest import Results
from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid, delayed, star

pytestmark = pytest.mark.lab


def pause(process: psutil.Process, stopped_s: float) -> None:
    process.suspend()
    time.sleep(stopped_s)
    process.resume()


def ledger(results: Results, link: str, sender: str) -> dict[str, Any]:
    ledgers = json.loads((results.run() / "conservation.json").read_text())
    assert not any(row["unexplained"] for row in ledgers["links"] + ledgers["switches"]), ledgers
    return next(
        dict(row) for row in ledgers["links"] if (row["link"], row["from"]) == (link, sender)
    )


@pytest.mark.long
def test_a_socket_of_the_switch_that_holds_two_frames(wrong_lab: WrongLab):
    def shrink(lab: RunningLab) -> None:
        for duplicate in sockets_of(lab.switches(), socket.AF_PACKET):
            with duplicate:
                if duplicate.getsockname()[0] == "s1-eth2":
                    duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)

    results = wrong_lab.run(meanwhile=shrink)
    place = "worker-1--s1 from worker-1: the socket of the switch's port"
    gate = assert_invalid(results, "emulator_losses", where=place)
    assert gate["value"] == ledger(results, "worker-1--s1", "worker-1")["socket_drops"] > 0


# Nothing else runs on the processor for 30 ms, five times, as if the hypervisor had given it away:
# a share of the time that no other gate minds.
STANDING = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
for _ in range(5):
    until_s = time.monotonic() + 0.03
    while time.monotonic() < until_s:
        pass
    time.sleep(0.2)
"""


LOSS = {"kind": "loss", "host": "server", "leg": "gather", "rounds": {"every": 2}, "q": 0.2}


@pytest.mark.long
def test_an_impairment_that_begins_late_is_found(wrong_lab: WrongLab):
    def stop_now_and_then(lab: RunningLab) -> None:
        controller = lab.process("controllers")
        for _ in range(18):
            pause(controller, 0.05)
            time.sleep(0.02)

    results = wrong_lab.run(meanwhile=stop_now_and_then, impairments=[LOSS], rounds=30)
    gate = assert_invalid(results, "impairment_late_s", where="loss-server in round")
    assert 0.01 < gate["value"] < 0.2


def set_limit(lab: RunningLab, limit_bytes: int) -> None:
    words = ["qdisc", "change", "dev", "s1-eth1", "parent", "1:10", "handle", "10:", "bfifo"]
    lab.run_in(lab.switches(), "tc", *words, "limit", str(limit_bytes))


IDLE = {"host": "traffic-1", "rounds": [2, 4]}


def test_six_faults_are_found_where_one_is_a_sampler_that_dies(wrong_lab: WrongLab):
    """Refused frames, a stalled processor, a cut queue, unmet impairments, a weak burst."""
    processor = max(os.sched_getaffinity(0))
    root = os.geteuid() == 0  # who alone may give real-time priority

    def disturb(lab: RunningLab) -> None:
        # What comes to it from the switch is refused, and what the middle of the link hands to it.
        for mtu in ("600", "1500"):
            lab.run_in(lab.switches(), "ip", "link", "set", "mid0b", "mtu", mtu)
            time.sleep(0.3)
        if root:
            argv = [sys.executable, "-c", STANDING, str(processor)]
            subprocess.run(argv, check=True, timeout=10)
        set_limit(lab, 15_000)
        lab.process("testbed.verdict.sampler").kill()

    entries = [
        {"kind": "loss", "name": "real", "host": "server", "rounds": [3], "q": 0.1},
        {"kind": "loss", "name": "idle-loss", "q": 0.1, **IDLE},
        {"kind": "queue", "name": "idle-queue", "rate_bps": wrong_lab.rate_bps // 2, **IDLE},
        # More frames than the controller can queue in time, where no queue is impaired then.
        {"kind": "burst", "name": "weak", "rate_factor": 100, "frame_bytes": 60}
        | {"host": "traffic-1", "rounds": [6]},
    ]
    results = wrong_lab.run(
        meanwhile=disturb,
        topology=star(wrong_lab.rate_bps, delay_s=0.002, extra_hosts=1),
        impairments=entries,
    )
    gate = assert_invalid(results, "emulator_losses", where="server--s1")
    refused = ledger(results, "server--s1", "s1")["interface_drops"]
    not_sent = ledger(results, "server--s1", "server")["delay_drops"]
    assert gate["value"] == max(refused, not_sent)
    if root:
        stall = assert_invalid(results, "clock_stall_s", where=f"processor {processor},")
        assert 0.025 < stall["value"] < 0.1
    where = "server--s1 from s1: queue_bytes 15000 in place of 150000 after the training"
    assert assert_invalid(results, "link_settings", where=where)["value"] == 1
    gone = assert_invalid(results, "samples_missing", outcome="not measured")
    assert "samples/sampler.json is missing" in gone["note"]
    unmet = assert_invalid(results, "impairments_unmet", where="idle-loss")
    assert set(unmet["where"].split(", ")) == {"idle-loss", "idle-queue"}
    assert unmet["value"] == 2
    weak = assert_invalid(results, "burst_missing", where="weak round ")
    assert 0.1 < weak["value"] < 1
    real = [event for event in results.events("impairments") if event["name"] == "real"]
    assert [event["action"] for event in real] == ["begin", "end"]
    assert real[-1]["met"] > 0  # so the gate judged it, too, and did not name it


def set_rate(lab: RunningLab, rate_bps: float) -> None:
    bucket = str(int(rate_bps * 0.0005 / 8))
    rate = ["rate", f"{round(rate_bps)}bit", "burst", bucket, "cburst", bucket]
    words = ["class", "change", "dev", "s1-eth1", "parent", "1:", "classid", "1:10", "htb"]
    lab.run_in(lab.switches(), "tc", *words, *rate, "quantum", "1514")


LEAK = (
    "add table netdev leak; add chain netdev leak hole "
    '{ type filter hook ingress device "server-eth0" priority 5; }; '
    "add rule netdev leak hole meta length > 500 numgen inc mod 1000 0 drop"
)


def test_a_rate_that_changes_by_a_twentieth_and_a_leak_that_nobody_counts_are_found_and_their_link(
    wrong_lab: WrongLab,
):
    rate_bps = wrong_lab.rate_bps

    def disturb(lab: RunningLab) -> None:
        set_rate(lab, rate_bps * 0.95)
        lab.run_in(lab.host("server"), "nft", LEAK)

    results = wrong_lab.run(
        meanwhile=disturb,
        after_s=0.0,
        arms={"tcp": {"protocol": "tcp"}},
        # Deep enough that it cannot run empty between two samples.
        topology=star(rate_bps, workers=3, queue_bytes=300_000),
    )
    gate = assert_invalid(results, "rate_under_load", where="server--s1 from s1", arm="tcp")
    # Late timers let credit of a bucket of half a millisecond expire, so a busy machine sends less.
    assert 0.03 < gate["value"] < 0.1
    leak = assert_invalid(results, "conservation", where="server--s1 from s1", arm="tcp")
    assert leak["value"] > leak["limit"]


FILTER = (
    "add table ip leak; add chain ip leak hole { type filter hook input priority 0; }; "
    "add rule ip leak hole meta length > 500 numgen random mod 5 0 drop"
)


def test_a_switch_that_is_stopped_a_queue_that_falls_and_a_host_s_filter_are_found(
    wrong_lab: WrongLab,
):
    def disturb(lab: RunningLab) -> None:
        pause(lab.process("ovs-vswitchd"), 0.1)
        set_limit(lab, 20_000)
        lab.run_in(lab.host("server"), "nft", FILTER)
        time.sleep(1)
        set_limit(lab, 150_000)
        lab.run_in(lab.host("server"), "nft", "delete table ip leak")

    results = wrong_lab.run(meanwhile=disturb)
    gate = assert_invalid(results, "standstill_s", where="ovs-vswitchd stopped in round")
    assert 0.05 < gate["value"] < 0.2
    where = "server--s1 from s1: queue_bytes 20000 in place of 150000 in round"
    assert assert_invalid(results, "link_settings", where=where)["value"] == 1
    gate = assert_invalid(results, "conservation", where="the kernel of server")
    assert 0.005 < gate["value"] < 0.2


STOPPED_S = 0.03


@pytest.mark.long
def test_a_relay_that_was_stopped_and_a_delay_that_changed_are_found(wrong_lab: WrongLab):
    def disturb(lab: RunningLab) -> None:
        pause(lab.process("testbed.lab.delay.relay"), STOPPED_S)
        root = f"/proc/{lab.switches()}/root{PRIVATE_DIRECTORY}"
        with contextlib.closing(RelayClient(f"{root}/delay.sock")) as client:
            client.change("server--s1", "s1", delay_s=0.006)
            time.sleep(0.5)
            client.change("server--s1", "s1", delay_s=0.005)

    results = wrong_lab.run(meanwhile=disturb, **delayed(wrong_lab.rate_bps))
    gate = assert_invalid(results, "relay_late_s")
    assert gate["value"] < STOPPED_S + 0.02
    assert_invalid(results, "relay_late_max_s")
    gate = assert_invalid(results, "delay_error_s", where="server--s1 from s1")
    assert 0.0005 < gate["value"] < 0.002
