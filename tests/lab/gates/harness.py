"""A small experiment with the limits that users get, for labs that are wrong in one way.

A test breaks the lab from the start (`altered`) or from outside while it trains (`meanwhile`).
"""

import json
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from testbed.lab.kernel.commands import run
from testbed.lab.kernel.shaping import inside
from testbed.verdict.gates import STOPPING
from tests.lab.conftest import (
    FEW_PATHS,
    Results,
    executed,
    find_process,
    training_has_begun,
    wait_for,
)

_LONGEST_S = 110


def star(rate_bps: int, **changes: Any) -> dict[str, Any]:
    common = {"name": "star", "workers": 2, "rate_bps": rate_bps, "queue_bytes": 150_000}
    return common | changes


def experiment(rate_bps: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": "gates",
        "rounds": 40,
        "seeds": [1],
        "topology": star(rate_bps),
        "training": {"batch_size": 16, "evaluate_every": 20},
        "arms": {"dblp": {"protocol": "dblp"}},
    } | changes


def delayed(rate_bps: int, *, rounds: int = 20) -> dict[str, Any]:
    """The small experiment on links that the relay delays by 5 ms and that are hardly ever idle."""
    return {
        "topology": star(rate_bps, delay_s=0.005, delayed_by="relay"),
        "training": {
            "model": "efficientnet-b0",
            "pace": {"kind": "payload-only", "scale": 0.05},
            "evaluate_every": 1000,
        },
        "phases": {"detector": "never-critical"},
        "rounds": rounds,
    }


class RunningLab:
    """The lab of a process, as a test sees it that breaks it from outside."""

    def __init__(self, command: BaseProcess) -> None:
        self._command = command

    def process(self, *words: str) -> psutil.Process:
        """The youngest process of the lab whose command line contains all words, waited for."""
        result: list[psutil.Process] = wait_for(lambda: find_process(self._command, *words))
        return result[-1]

    def host(self, name: str) -> int:
        threads = Path(f"/proc/{self.process('testbed.run.supervisor').pid}/task").iterdir()
        (result,) = (thread for thread in threads if (thread / "comm").read_text().strip() == name)
        return int(result.name)

    def trainer(self, host: str) -> psutil.Process:
        network = Path(f"/proc/{self.host(host)}/ns/net").stat().st_ino
        (result,) = (
            child
            for child in psutil.Process(self._command.pid).children(recursive=True)
            if Path(f"/proc/{child.pid}/ns/net").stat().st_ino == network
        )
        return result

    def switches(self) -> int:
        """A process in the namespace of all switches; `s1-eth1` is s1's port to the server."""
        return self.process("ovs-vswitchd").pid

    def run_in(self, pid: int, *argv: str) -> str:
        return run([*inside(pid), *argv], timeout_s=10)


class WrongLab:
    """Runs the small experiment as `./lab run` does."""

    def __init__(self, folder: Path, rate_bps: int) -> None:
        self.folder = folder
        self.rate_bps = rate_bps

    def run(
        self,
        *,
        altered_by: Mapping[str, str] | None = None,
        meanwhile: Callable[[RunningLab], object] | None = None,
        every_path: bool = False,
        after_s: float = 0.3,
        retries: int = 0,
        **changes: Any,
    ) -> Results:
        results = self.folder / "out"
        process = executed(
            results,
            document=experiment(self.rate_bps, **changes),
            altered_by=({} if every_path else FEW_PATHS) | dict(altered_by or {}),
            retries=retries,
        )
        try:
            if meanwhile is not None:
                wait_for(lambda: training_has_begun(results), _LONGEST_S)
                time.sleep(after_s)
                meanwhile(RunningLab(process))
                assert process.is_alive(), "it was over before it was broken"
            process.join(_LONGEST_S)
        finally:
            process.kill()
            process.join()
        return Results(process.exitcode, results)


def assert_invalid(
    results: Results, key: str, *, outcome: str = "failed", where: str = "", arm: str = "dblp"
) -> dict[str, Any]:
    status = results.verdict(arm)
    output = json.dumps(status, indent=1)
    assert status["verdict"] == "invalid", output
    assert results.status == 1
    stopping = {gate["key"]: gate for gate in status["gates"] if gate["outcome"] in STOPPING}
    assert key in stopping, output
    gate = stopping.pop(key)
    for other in stopping.values():
        print(f"beside {key}, {other['key']} {other['outcome']}: {other}")
    assert gate["outcome"] == outcome, output
    assert where in gate["where"], output
    assert gate["name"] in status["reason"], output
    assert where in status["reason"], output
    return dict(gate)
