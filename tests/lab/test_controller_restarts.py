"""The controller, then the switch, dies amid impairments: what is in force now holds afterwards."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from testbed.lab.openflow_statistics import Statistics
from testbed.lab.sandbox import PRIVATE_DIRECTORY
from tests.lab.conftest import wait_for
from tests.lab.lab_under_test import Flow, LabUnderTest, sandboxed

BEGIN_S, AGAIN_S, LASTS_S = 1.5, 4.5, 2.5
WAYS = [("s1", 2, "s2", 1), ("s1", 3, "s3", 1), ("s2", 2, "s4", 2), ("s3", 2, "s4", 3)]
DESCRIPTION: dict[str, Any] = {
    "switches": {f"s{number}": number for number in range(1, 5)},
    "hosts": {
        "a": {"mac": "00:00:00:00:00:01", "switch": "s1", "port": 1},
        "b": {"mac": "00:00:00:00:00:02", "switch": "s4", "port": 1},
    },
    "links": [
        {"first": {"switch": a, "port": i}, "second": {"switch": b, "port": j}}
        for a, i, b, j in WAYS
    ],
    "impairments": [
        {"kind": "blackout", "name": "dark", "host": "b"},
        {"kind": "police", "name": "slow", "host": "a", "rate_bps": 1_000_000},
        {"kind": "link-down", "name": "cut", "link": ["s1", "s2"]},
    ],
}


def passes(flow: Flow, *, packets: int = 20) -> bool:
    """Whether all of a few packets arrive."""
    sent = flow.send(packets, rate_bps=10e6)
    return flow.received(quiet_s=0.05)[-packets:] == sent


def share_policed(flow: Flow) -> float:
    """The share of a stream of 5 Mbit/s that the meter of 1 Mbit/s lets pass, once it is empty."""
    flow.send(50, payload_bytes=1000, rate_bps=20e6)
    flow.received(quiet_s=0.02)
    sent = flow.send(100, payload_bytes=1000, rate_bps=5e6)
    return len(flow.received(quiet_s=0.02)) / len(sent)


def kill(first_pid: int, word: str, number: int) -> None:
    """End the sandbox's process of that name, once it is up."""

    def found() -> list[psutil.Process]:
        children = psutil.Process(first_pid).children(recursive=True)
        return [each for each in children if word in each.cmdline()]

    wait_for(found)[0].send_signal(number)


def test_what_is_in_force_survives_the_controller_and_the_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"at_s": [BEGIN_S, AGAIN_S], "duration_s": LASTS_S}
    impairments = [each | times for each in DESCRIPTION["impairments"]]
    path = tmp_path / "hand.yaml"
    (tmp_path / "events").mkdir()
    log = {"log": "events/impairments.jsonl"}
    path.write_text(yaml.safe_dump(DESCRIPTION | log | {"impairments": impairments}))
    with sandboxed("tests.lab.inside_bridges", lab_file=str(path), logs=str(tmp_path)) as (
        network,
        first_pid,
    ):
        monkeypatch.setenv("OVS_RUNDIR", f"/proc/{first_pid}/root{PRIVATE_DIRECTORY}")
        lab = LabUnderTest(tmp_path, network, first_pid)

        def times_logged(name: str, action: str) -> int:
            return sum(each["action"] == action for each in lab.events(name))

        def wait_until_all(action: str, times: int) -> None:
            names = ("dark", "slow", "cut")
            wait_for(lambda: all(times_logged(name, action) >= times for name in names), 15)

        def held(switch: str) -> tuple[int, int]:
            """How many flows and groups a switch has."""
            with Statistics(switch) as statistics:
                return len(statistics.flows()), len(statistics.bucket_ports())

        with lab.flow("a", "b") as there, lab.flow("b", "a") as back:
            assert passes(there)
            assert passes(back)
            fresh = {name: held(name) for name in DESCRIPTION["switches"]}
            assert fresh["s1"][1] == 2  # groups: two ways to b

            # The controller is killed: what it left is removed by the next one.
            wait_until_all("begin", 1)
            kill(first_pid, "controllers", signal.SIGKILL)
            assert not passes(there)
            wait_for(lambda: passes(there), 10)
            assert passes(back, packets=100)
            assert times_logged("dark", "begin") == 1
            assert {name: held(name) for name in fresh} == fresh  # and the cut link is up again

            # The switch daemon is killed: it gets what is in force now.
            wait_until_all("begin", 2)
            assert times_logged("dark", "end") == 0
            wait_for(lambda: held("s1")[1] == 0, 5)  # no way to b but one
            cut = held("s1")
            kill(first_pid, "ovs-vswitchd", signal.SIGKILL)
            wait_for(lambda: not _answers("s1"), 5)
            wait_for(lambda: _answers("s1") and passes(back), 5)
            assert held("s1") == cut
            assert not passes(there)
            assert share_policed(back) == pytest.approx(0.2, abs=0.1)
            assert times_logged("dark", "end") == 0
            wait_until_all("end", 1)
            wait_for(lambda: passes(there), 5)
            assert passes(back, packets=100)
            (dark,) = (each for each in lab.events("dark") if each["action"] == "end")
            assert (dark["met"], dark["dropped"]) == (None, None)
            assert "s4 has reconnected" in dark["details"]["not_measured"]
            wait_for(lambda: {name: held(name) for name in fresh} == fresh, 5)

            # Ctrl-C ends what is in force, and says so.
            wait_until_all("begin", 3)
            kill(first_pid, "controllers", signal.SIGINT)
            wait_until_all("end", 2)
            assert passes(there)
            # Not yet the work of the next controller, which starts for longer.
            wait_for(lambda: {name: held(name) for name in fresh} == fresh, 1)
    assert "Traceback" not in (tmp_path / "controller.log").read_text()


def _answers(switch: str) -> bool:
    try:
        with Statistics(switch) as statistics:
            return len(statistics.flows()) > 2
    except OSError:
        return False
