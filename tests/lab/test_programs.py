"""Programs of one's own in real labs: rounds that they mark, and how they end badly."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.lab.kernel.socket_defaults import LEAST_TIMEOUT
from tests.lab.conftest import SMALL

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("unchanged_host")]

SERVER = """
import os, socket
lab = socket.socket(socket.AF_UNIX)
lab.connect(os.environ["LAB_MARKERS"])
answers = lab.makefile("r")
def mark(line):
    lab.sendall(line.encode() + b"\\n")
    print(answers.readline().strip(), flush=True)
listener = socket.create_server(("", 6000))
peer, _ = listener.accept()
for number in range(4):
    mark(f"begin {number} gather")
    peer.sendall(b"g")
    left = 300_000
    while left:
        left -= len(peer.recv(min(left, 65536)))
    mark(f"end {number} gather")
mark("end 9 gather")
least = "/proc/sys/net/ipv4/tcp_rto_min_us"
print(open(least).read().strip() if os.path.exists(least) else "none here")
"""
CLIENT = """
import socket
server = socket.create_connection(("server", 6000))
while server.recv(1):
    server.sendall(bytes(300_000))
"""


@pytest.fixture
def run_programs(run_small, monkeypatch):
    """Runs programs in place of the training of SMALL."""
    for key in ("rounds", "training", "transport", "arms"):
        monkeypatch.delitem(SMALL, key)

    def run(*programs: dict[str, Any], **changes: Any):
        workload = {"kind": "programs", "programs": list(programs), **changes.pop("workload", {})}
        arms = {"mine": {"congestion_control": changes.pop("congestion_control", "reno")}}
        return run_small(workload=workload, arms=arms, **changes)

    return run


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_marked_rounds_are_hit_by_a_loss_on_their_leg_and_measured(run_programs):
    loss = {"kind": "loss", "name": "a loss", "host": "server", "rounds": [2], "q": 0.02}
    least = {"tcp_rto_min_s": "5ms"} if LEAST_TIMEOUT.exists() else {}
    results = run_programs(
        {"host": "server", "run": python(SERVER), "output": "server.txt", "time_limit_s": 40},
        {"host": "worker-1", "run": python(CLIENT), "after": "server"},
        workload={"data_ports": [6000, 6000], **least},
        impairments=[loss],
    )
    results.assert_trained()
    folder = results.run("mine")
    printed = (folder / "output" / "server.txt").read_text().splitlines()
    assert printed[:-2] == ["ok"] * 4 + ["ok a_loss"] * 2 + ["ok"] * 2
    assert printed[-1] == ("5000" if LEAST_TIMEOUT.exists() else "none here")
    assert printed[-2] == "refused: the gather of round 9 has not begun"
    rounds = results.events("rounds", "mine")
    assert [row["impairments"] for row in rounds] == [[], [], ["a loss"], []]
    ideal_s = 300_000 * 8 / SMALL["topology"]["rate_bps"]
    assert all(row["latency_s"] == row["gather_s"] > ideal_s for row in rounds)
    (end,) = [event for event in results.events("impairments", "mine") if event["action"] == "end"]
    assert end["met"] > 200  # 300 000 bytes are 208 segments
    stored = json.loads((folder / "workload.json").read_text())
    refused = "'end 9 gather': the gather of round 9 has not begun"
    assert stored["markers"] == {"accepted": 8, "refused": 1, "first_refused": refused}
    assert [program["exit_status"] for program in stored["programs"]] == [0, 0]
    sampled = json.loads((folder / "samples" / "sampler.json").read_text())
    seen = {
        (congestion_control["host"], congestion_control["congestion_control"])
        for congestion_control in sampled["congestion_controls"]
    }
    assert seen <= {("server", "reno"), ("worker-1", "reno")}
    text = f"markers: 1 of 9 lines were refused, first {refused}"
    assert text in results.verdict("mine")["reason"]


JOB = Path(__file__).parents[2] / "experiments" / "programs" / "job.py"


@pytest.mark.parametrize(
    "protocol", [pytest.param("tcp-cubic", marks=pytest.mark.long), "bounded-energy bbr"]
)
def test_the_job_of_fairness_exchanges_and_marks_its_rounds(run_programs, protocol):
    server = f"lab-python {JOB} server server worker-1 50e6 2 {protocol}"
    workers = f"lab-python {JOB} workers worker-1 server 50e6 {protocol}"
    results = run_programs(
        {"host": "server", "run": server, "time_limit_s": 40},
        {"host": "worker-1", "run": workers, "after": "server"},
        congestion_control="cubic",  # which a program may not be able to choose by itself
    )
    results.assert_trained()
    rounds = results.events("rounds", "mine")
    assert [row["round"] for row in rounds] == [0, 1]
    # Two workers get 500 kB each, which one link carries, whatever is given up on the way there.
    least_s = 0.2 * 2 * 500_000 * 8 / SMALL["topology"]["rate_bps"]
    assert all(row["latency_s"] > least_s for row in rounds)


WAITS = python("import time; time.sleep(60)")
FAILS = python("import sys; sys.exit('no disk')")


@pytest.mark.parametrize(
    ("programs", "says"),
    [
        ([{"host": "server", "run": FAILS}], "server: ended with status 1; logs/server.log ends: "),
        pytest.param(
            [{"host": "server", "run": WAITS, "time_limit_s": 0.5}],
            "server: not finished after 0.5 s (time_limit_s); logs/server.log is empty",
            marks=pytest.mark.long,
        ),
        pytest.param(
            [
                {"host": "server", "run": WAITS},
                {"host": "worker-1", "run": WAITS, "after": "server", "after_timeout_s": 0.5},
            ],
            "worker-1: waited for server, which neither listened nor ended within 0.5 s "
            "(after_timeout_s); logs/server.log is empty",
            marks=pytest.mark.long,
        ),
        pytest.param(
            [
                {"host": "server", "run": python("pass"), "service": True},
                {"host": "worker-1", "run": WAITS},
            ],
            "server: ended before the others, as no service does; logs/server.log is empty",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_program_that_ends_badly_is_the_reason_with_its_last_words(run_programs, programs, says):
    results = run_programs(*programs)
    status = results.verdict("mine")
    assert status["verdict"] == "failed"
    assert status["reason"].startswith(says), status["reason"]


def test_a_crash_kills_the_first_program_of_its_host_and_the_reason_names_it(run_programs):
    crash = {"kind": "crash", "name": "power-cut", "host": "worker-1", "at_s": [0.5]}
    results = run_programs(
        {"host": "server", "run": WAITS},
        {"name": "first", "host": "worker-1", "run": WAITS},
        {"name": "second", "host": "worker-1", "run": WAITS},
        impairments=[crash],
    )
    status = results.verdict("mine")
    assert status["verdict"] == "failed"
    reason = "first: killed by SIGKILL by impairment power-cut (kind crash); logs/first.log is "
    assert status["reason"].startswith(reason), status["reason"]
