"""Host-side impairments: what YAML may say, the programs that carry them out, and if one dies."""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from controllers import impairment_plan
from controllers.impairments import AnyImpairment, Impairment, ImpairmentParameters, make
from testbed.lab.helpers.process import HelperError, HelperProcess
from testbed.lab.kernel import process_status
from testbed.lab.kernel.process_status import sockets_of
from testbed.shared.messages import wait_for
from tests.busy import busy_process

PLACES = impairment_plan.Places(
    hosts=["server", "worker-1", "traffic-1"],
    switches={"s1"},
    links=[("server", "s1"), ("worker-1", "s1"), ("traffic-1", "s1")],
    working_hosts=["server", "worker-1"],
)
BACKGROUND = {"kind": "background", "from": "traffic-1", "rounds": [1]}
STRAGGLER = {"kind": "straggler", "host": "worker-1", "factor": 3, "rounds": [1]}
CRASH = {"kind": "crash", "host": "worker-1", "rounds": [1]}


def parsed(document: dict[str, Any]) -> ImpairmentParameters:
    parameters: ImpairmentParameters = TypeAdapter(AnyImpairment).validate_python(document)
    return parameters


@pytest.mark.parametrize("document", [BACKGROUND, STRAGGLER, CRASH])
def test_a_resolved_entry_reads_as_the_same_again(document):
    (once,) = impairment_plan.resolve([parsed(document)], PLACES, rounds=5, seed=1)
    (again,) = impairment_plan.resolve([parsed(once)], PLACES, rounds=5, seed=1)
    assert json.loads(json.dumps(once)) == again


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (BACKGROUND | {"from": "server"}, "'server' is the victim itself"),
        ({**BACKGROUND, "link": ["s1", "server"]}, "takes host"),
        (BACKGROUND | {"congestion_control": "-x; reboot"}, "congestion_control"),
        (BACKGROUND | {"from": "traffic-9"}, "from: unknown host 'traffic-9'; valid: server"),
        (
            STRAGGLER | {"host": "traffic-1"},
            "'traffic-1': nothing of the workload runs there; valid: server, worker-1",
        ),
    ],
)
def test_bad_values_are_refused(document, problem):
    with pytest.raises(ValueError, match=problem):
        impairment_plan.resolve([parsed(document)], PLACES, rounds=5, seed=1)


def test_background_says_what_the_machine_lacks(monkeypatch):
    lacking = parsed(BACKGROUND | {"congestion_control": "nonesuch"}).lacking(["server"])
    assert lacking is not None
    assert "'nonesuch'" in lacking
    assert "reno" in lacking
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "iperf3" in (parsed(BACKGROUND).lacking(["server"]) or "")


# The programs


@contextmanager
def helper(module: str, *arguments: str) -> Iterator[HelperProcess]:
    argv = [sys.executable, "-m", f"testbed.lab.helpers.{module}", *arguments]
    process = HelperProcess(argv, name=module).start()
    try:
        yield process
    finally:
        process.close()


def ask(process: HelperProcess, do: str, **request: object) -> dict[str, Any]:
    process.send(do=do, **request)
    return process.receive(10)


def cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_let_go(pid: int) -> bool:
    """It is true if the process is not seen stopped again, after a moment to be let go."""
    deadline_s = time.monotonic() + 30
    while state(pid) == "T" and time.monotonic() < deadline_s:
        time.sleep(0.001)
    for _ in range(100):
        if state(pid) == "T":
            return False
        time.sleep(0.001)
    return True


def test_a_slowed_process_gets_its_share_of_the_time_and_all_of_it_afterwards():
    with busy_process() as process, helper("slowdown") as program:
        ask(program, "slow", pid=process.pid, factor=5)
        began_s, before_s = time.monotonic(), cpu_s(process.pid)
        time.sleep(0.6)
        share = (cpu_s(process.pid) - before_s) / (time.monotonic() - began_s)
        slowed = ask(program, "release")
        assert 0 < share < 0.2 * 1.4
        stopped = slowed["stopped_s"] / (slowed["ended_s"] - slowed["began_s"])
        assert stopped == pytest.approx(0.8, abs=0.1)  # a busy machine lets go late
        assert slowed["cycles"] > 20
        assert is_let_go(process.pid)


@pytest.mark.parametrize("ending", ["killed", "terminated", "master gone"])
def test_a_process_is_not_left_stopped_however_the_program_ends(ending):
    with busy_process() as process, helper("slowdown") as program:
        ask(program, "slow", pid=process.pid, factor=50)
        deadline_s = time.monotonic() + 30
        while state(process.pid) != "T" and time.monotonic() < deadline_s:
            pass
        if ending == "killed":
            program.process.kill()
        elif ending == "terminated":
            program.process.terminate()
        else:
            program.finish(10)
            assert program.process.returncode == 0
        program.process.wait(10)
        assert is_let_go(process.pid)


def impairment(document: dict[str, Any], **processes: int) -> Impairment[Any]:
    """An impairment of a lab whose hosts share this machine's loopback."""
    host = SimpleNamespace(pid=os.getpid(), address="127.0.0.1")
    lab: Any = SimpleNamespace(
        processes={name.replace("_", "-"): pid for name, pid in processes.items()},
        hosts={"here": host, "there": host},
        network={"links": []},
        readable=wait_for,
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
    background = impairment(BACKGROUND | {"host": "here", "from": "there"})
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
