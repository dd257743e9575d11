"""An impairment whose helper or target dies is not recorded as if it had been in force."""

from __future__ import annotations

import os
import shutil
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from controllers.impairments import Impairment, make
from testbed.lab.helpers.process import HelperError, wait_readable
from testbed.lab.kernel import process_status
from testbed.lab.kernel.process_sockets import sockets_of
from tests.busy import busy_process

STRAGGLER = {"kind": "straggler", "host": "worker-1", "factor": 3, "rounds": [1]}
CRASH = {"kind": "crash", "host": "worker-1", "rounds": [1]}
BACKGROUND = {"kind": "background", "host": "here", "from": "there", "rounds": [1]}


def impairment(document: dict[str, Any], **processes: int) -> Impairment[Any]:
    """An impairment of a lab whose hosts share this machine's loopback."""
    host = SimpleNamespace(pid=os.getpid(), address="127.0.0.1")
    lab: Any = SimpleNamespace(
        processes={name.replace("_", "-"): pid for name, pid in processes.items()},
        hosts={"here": host, "there": host},
        network={"links": []},
        readable=wait_readable,
        sleep=time.sleep,
        spawn=lambda _function: None,
    )
    made: Impairment[Any] = make(document, lab)
    return made


@pytest.mark.parametrize("document", [STRAGGLER, CRASH], ids=["straggler", "crash"])
def test_a_process_that_has_already_ended_is_neither_slowed_nor_killed(document):
    with busy_process() as target:
        late = impairment(document, worker_1=target.pid)
        target.kill()
        os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)  # nobody has waited for it yet
        for _ in range(2):
            with pytest.raises(HelperError, match="process on 'worker-1' has already ended"):
                late.begin()
            target.wait()


def test_a_process_that_ends_while_it_is_slowed_was_slowed_until_then():
    with busy_process() as target:
        straggler = impairment(STRAGGLER, worker_1=target.pid)
        began_s = time.monotonic()
        straggler.begin()
        time.sleep(0.2)
        target.kill()
        target.wait()
        ended_s = time.monotonic()
        time.sleep(0.5)
        straggler.end()
    effect = straggler.effect()
    assert straggler.changes_rates == "no"  # a slow process excuses no link
    assert effect.met is not None
    assert effect.met > 5
    assert 0.15 < float(effect.details["slowed_s"]) < ended_s - began_s + 0.4


def test_a_straggler_whose_helper_is_killed_raises_and_lets_the_process_go():
    with busy_process() as target:
        straggler = impairment(STRAGGLER, worker_1=target.pid)
        straggler.begin()
        helper = straggler._slow._helper  # type: ignore[attr-defined]
        helper.process.kill()
        helper.process.wait()
        with pytest.raises(HelperError, match="slowdown: ended with status -9"):
            straggler.end()
        assert process_status.read(target.pid)[1][process_status.STATE] != b"T"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(shutil.which("iperf3") is None, reason="needs iperf3")
@pytest.mark.parametrize("victim", ["client", "server"])
def test_background_traffic_one_end_of_which_is_killed_raises(victim):
    background = impairment(BACKGROUND)
    background.begin()
    pair = background._pair  # type: ignore[attr-defined]
    while len(list(sockets_of(pair.client.pid, socket.AF_INET))) < 2:  # control and data
        time.sleep(0.01)
    try:
        getattr(pair, victim).process.kill()
        getattr(pair, victim).process.wait()
        time.sleep(0.5)
        with pytest.raises(HelperError, match="iperf3 ended early: "):
            background.end()
    finally:
        pair.client.close()
        pair.server.close()
