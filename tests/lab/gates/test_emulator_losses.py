"""Parts of the emulator lose packets and count them: explained, and still no result."""

from __future__ import annotations

import json
import socket
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
        found = sockets_of(lab.switches(), socket.AF_PACKET)
        for each in found:
            with each:
                if each.getsockname()[0] == "s1-eth2":
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)

    results = wrong_lab.run(meanwhile=shrink)
    place = "worker-1--s1 from worker-1: the socket of the switch's port"
    gate = assert_invalid(results, "emulator_losses", where=place)
    assert gate["value"] == ledger(results, "worker-1--s1", "worker-1")["socket_drops"] > 0


def test_an_inner_interface_that_refuses_large_frames(wrong_lab: WrongLab):
    def narrow(lab: RunningLab) -> None:
        # What comes to it from the switch is refused, and what the middle of the link hands to it.
        for mtu in ("600", "1500"):
            lab.run_in(lab.switches(), "ip", "link", "set", "mid0b", "mtu", mtu)
            time.sleep(0.3)

    topology = {"name": "star", "workers": 2, "queue_bytes": 150_000, "delay_s": 0.002}
    topology["rate_bps"] = wrong_lab.rate_bps
    results = wrong_lab.run(meanwhile=narrow, topology=topology, rounds=26)
    gate = assert_invalid(results, "emulator_losses", where="server--s1")
    refused = ledger(results, "server--s1", "s1")["interface_drops"]
    not_sent = ledger(results, "server--s1", "server")["delay_drops"]
    assert gate["value"] == max(refused, not_sent)
