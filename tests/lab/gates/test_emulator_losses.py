"""Accidents of the emulator while a run trains: counted losses, late impairments, a processor that
stands still.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from testbed.lab.kernel.process_sockets import sockets_of
from tests.lab.conftest import Results
from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab


def ledger(results: Results, link: str, sender: str) -> dict[str, Any]:
    books = json.loads((results.run() / "conservation.json").read_text())
    assert not any(each["unexplained"] for each in books["links"] + books["switches"]), books
    return next(
        dict(each) for each in books["links"] if (each["link"], each["from"]) == (link, sender)
    )


@pytest.mark.long
def test_a_socket_of_the_switch_that_holds_two_frames(wrong_lab: WrongLab):
    def shrink(lab: RunningLab) -> None:
        for each in sockets_of(lab.switches(), socket.AF_PACKET):
            with each:
                if each.getsockname()[0] == "s1-eth2":
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)

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


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give real-time priority")
def test_refused_frames_and_a_processor_that_stands_still_are_found(
    wrong_lab: WrongLab,
):
    processor = max(os.sched_getaffinity(0))

    def disturb(lab: RunningLab) -> None:
        # What comes to it from the switch is refused, and what the middle of the link hands to it.
        for mtu in ("600", "1500"):
            lab.run_in(lab.switches(), "ip", "link", "set", "mid0b", "mtu", mtu)
            time.sleep(0.3)
        subprocess.run([sys.executable, "-c", STANDING, str(processor)], check=True, timeout=10)

    topology = {"name": "star", "workers": 2, "queue_bytes": 150_000, "delay_s": 0.002}
    topology["rate_bps"] = wrong_lab.rate_bps
    results = wrong_lab.run(meanwhile=disturb, topology=topology)
    gate = assert_invalid(results, "emulator_losses", where="server--s1")
    refused = ledger(results, "server--s1", "s1")["interface_drops"]
    not_sent = ledger(results, "server--s1", "server")["delay_drops"]
    assert gate["value"] == max(refused, not_sent)
    stall = assert_invalid(results, "clock_stall_s", where=f"processor {processor},")
    assert 0.025 < stall["value"] < 0.1
