"""A lab without training that a test drives: it announces legs and sends its own packets."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controllers.controller_socket import ControllerClient
from testbed import experiment
from testbed.lab import sandbox
from testbed.lab.kernel import namespaces
from testbed.lab.sandbox import PRIVATE_DIRECTORY
from testbed.run.session import LabSession
from testbed.shared.messages import Messages
from testbed.transport.wire import DATA_PORTS
from tests.lab.conftest import SMALL, wait_for

DATA_PORT = 47000
_numbers = itertools.count()


class LabUnderTest:
    """A running lab. `network` is its description; process ids in it are the sandbox's own."""

    def __init__(self, logs: Path, network: dict[str, Any], first_pid: int) -> None:
        self.records = logs / "events"
        self.network = network
        self._first_pid = first_pid
        self._open: list[tuple[int, str]] = []
        self._ended_before: collections.Counter[str] = collections.Counter()
        self._outer_pids = _outer_pids(first_pid)

    @functools.cached_property
    def client(self) -> ControllerClient:
        private = f"/proc/{self._first_pid}/root{PRIVATE_DIRECTORY}"
        return ControllerClient(Path(private, "controller.sock"))

    def outer_pid(self, inner_pid: int) -> int:
        return self._outer_pids[inner_pid]

    def host_pid(self, name: str) -> int:
        return self.outer_pid(self.network["hosts"][name]["pid"])

    def interface(self, node: str, other: str) -> tuple[int, str]:
        """A process in the namespace of `node`'s end of a link, and the interface's name."""
        for link in self.network["links"]:
            ends = {link[end]["node"]: link[end] for end in ("first", "second")}
            if set(ends) == {node, other}:
                inner = ends[node]["pid"]
                pid = self._first_pid if inner is None else self.outer_pid(inner)
                return pid, str(ends[node]["interface"])
        raise KeyError((node, other))

    def address(self, name: str) -> str:
        return str(self.network["hosts"][name]["address"])

    def begin(self, round_number: int, leg: str = "gather") -> list[str]:
        self._ended_before = collections.Counter(end["name"] for end in self._ends())
        self._open.append((round_number, leg))
        return self.client.begin(round_number, leg)

    def end(self, round_number: int, leg: str = "gather") -> list[str]:
        self._open.remove((round_number, leg))
        return self.client.end(round_number, leg)

    def end_all(self) -> None:
        """Announce the end of legs that a failed test left open, so that the next can begin."""
        while self._open:
            self.end(*self._open[-1])

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self._events() if event["name"] == name]

    def ended(self, name: str) -> dict[str, Any]:
        """The record of an entry's end after the last announced begin, waited for."""
        seen = self._ended_before[name]

        def ends() -> list[dict[str, Any]]:
            return [end for end in self._ends() if end["name"] == name][seen:]

        return dict(wait_for(ends, 15)[-1])

    def _events(self) -> list[dict[str, Any]]:
        path = self.records / "impairments.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def _ends(self) -> list[dict[str, Any]]:
        return [event for event in self._events() if event["action"] == "end"]

    def flow(self, sender: str, receiver: str, *, port: int | None = None) -> Flow:
        """UDP from one host to another, on a data port of its own unless one is given."""
        return Flow(self, sender, receiver, port or DATA_PORT + next(_numbers) % 1000)


class Flow:
    """Numbered UDP packets between two hosts, and which of them arrived."""

    def __init__(self, lab: LabUnderTest, sender: str, receiver: str, port: int) -> None:
        kind = (socket.AF_INET, socket.SOCK_DGRAM)
        self._out = namespaces.socket_in(lab.host_pid(sender), *kind)
        self._in = namespaces.socket_in(lab.host_pid(receiver), *kind)
        self._in.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self._in.bind((lab.address(receiver), port))
        self._in.setblocking(False)
        self._out.connect((lab.address(receiver), port))
        self._sent = 0

    def __enter__(self) -> Flow:
        return self

    def __exit__(self, *unused: object) -> None:
        self._out.close()
        self._in.close()

    def send(self, count: int, *, payload_bytes: int = 200, rate_bps: float = 80e6) -> list[int]:
        """Send at a rate (of Ethernet frames); returns the numbers of the packets sent."""
        first, began_s = self._sent, time.monotonic()
        gap_s = (payload_bytes + 42) * 8 / rate_bps
        filling = bytes(payload_bytes - 8)
        for number in range(count):
            while (early_s := began_s + number * gap_s - time.monotonic()) > 0:
                if early_s > 0.002:
                    time.sleep(0.001)
            with contextlib.suppress(BlockingIOError):
                self._out.send((first + number).to_bytes(8, "big") + filling)
        self._sent += count
        return list(range(first, self._sent))

    def timed(
        self, duration_s: float, *, payload_bytes: int, rate_bps: float
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Send for a while; returns when each packet was sent, and when those that came arrived."""
        sent: dict[int, float] = {}
        arrived: dict[int, float] = {}
        gap_s = (payload_bytes + 42) * 8 / rate_bps
        filling = bytes(payload_bytes - 8)
        began_s = time.monotonic()
        while (now_s := time.monotonic()) < began_s + duration_s + 0.3:
            if now_s < began_s + duration_s and now_s >= began_s + len(sent) * gap_s:
                sent[self._sent] = now_s
                self._out.send(self._sent.to_bytes(8, "big") + filling)
                self._sent += 1
            with contextlib.suppress(BlockingIOError):
                while True:
                    number = int.from_bytes(self._in.recv(2048)[:8], "big")
                    arrived[number] = time.monotonic()
            time.sleep(0.0002)
        return sent, arrived

    def received(self, *, quiet_s: float = 0.1) -> list[int]:
        """Numbers of the packets that arrived since the last call, in order of arrival."""
        result = []
        while select.select([self._in], [], [], quiet_s)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    result.append(int.from_bytes(self._in.recv(2048)[:8], "big"))
        return result


@contextlib.contextmanager
def running_lab(
    logs: Path, impairments: list[dict[str, Any]], topology: dict[str, Any]
) -> Iterator[LabUnderTest]:
    """Build a lab with these entries (as in YAML); it is gone afterwards."""
    for name in ("events", "logs"):
        (logs / name).mkdir(parents=True, exist_ok=True)
    document = {**SMALL, "rounds": 100, "impairments": impairments, "topology": topology}
    path = logs / "experiment.yaml"
    path.write_text(yaml.safe_dump(document))
    (run,) = experiment.load(str(path))
    with sandboxed(__name__, config=run.config(), logs=str(logs)) as (network, pid):
        yield LabUnderTest(logs, network, pid)


@contextlib.contextmanager
def sandboxed(module: str, **request: Any) -> Iterator[tuple[dict[str, Any], int]]:
    """Ask a module in a sandbox; yields its answer, a network, and its first process."""
    if os.geteuid() != 0:
        pytest.skip("enters the hosts' namespaces from outside: needs root")
    with sandbox.start(module) as box:
        network, pid = box.ask(request, timeout_s=60)[0], box.process.pid
        (first,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        yield network, first  # the only child of `unshare`


def _outer_pids(first_pid: int) -> dict[int, int]:
    """Process ids outside by those inside, of all processes of a sandbox."""
    space = Path(f"/proc/{first_pid}/ns/pid").readlink()
    result = {}
    holders = Path(f"/proc/{first_pid}/task").iterdir()
    for entry in [*Path("/proc").glob("[0-9]*"), *holders]:
        try:
            if (entry / "ns/pid").readlink() != space:
                continue
            status = (entry / "status").read_text()
        except OSError:
            continue
        (line,) = (row for row in status.splitlines() if row.startswith("NSpid:"))
        result[int(line.split()[-1])] = int(entry.name)
    return result


def in_sandbox(request: dict[str, Any], messages: Messages) -> None:
    """Inside: build the lab, describe it, and wait for the end of the sandbox."""
    lab = LabSession(request["config"], Path(request["logs"]))
    lab.begin()
    lab.build(data_ports=DATA_PORTS)
    lab.warm_up()
    messages.answer(request, lab.info.as_json())
    signal.pause()
