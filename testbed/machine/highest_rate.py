"""`./lab check --deep`: the highest link rate that this machine holds for a server and 3 workers.

A rate is *held* if at least 97 % of it arrives while all workers send to the server and it to them,
and some processor time is left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Console

from testbed.lab import sandbox
from testbed.lab.datapath import Datapath, Wanted
from testbed.lab.kernel import process_status
from testbed.lab.network import HostInfo
from testbed.lab.sandbox import SandboxError
from testbed.run.session import LabSession
from testbed.shared.messages import Messages
from testbed.shared.yaml_input import InputError

WORKERS = 3
SHARE_REACHED = 0.97
SHARE_IDLE = 0.05
LADDER_MBPS = (100, 200, 300, 400, 500, 600, 800, 1000, 1500, 2000, 3000, 5000, 10_000)
_TRIAL_S = 1.2
_WARM_UP_S = 0.3
_HALVINGS = 3
_LEAST_BPS = 2_000_000
_LONGEST_S = 60.0
_LAB_S = 4.0
# A little more than the link carries, so that its queue is never empty.
_OFFERED = 1.1
_QUEUE_S = 0.012
_FRAME_BYTES, _HEADERS_BYTES = 1514, 42
_PORT = 47500


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One rate: what arrived of it, and what the machine spent on it; rates in Ethernet frames."""

    rate_bps: int
    incast_bps: float
    broadcast_bps: float
    idle: float  # share of all processors' time that was left
    lab_cores: float  # of all processes of the lab
    switch_cores: float
    rtt_s: float = 0.0  # median, before anything else was sent
    datapath: Datapath = "userspace"

    @property
    def reached(self) -> float:
        """Share of the configured rate that arrived, in the worse direction."""
        return min(self.incast_bps, self.broadcast_bps) / self.rate_bps

    @property
    def held(self) -> bool:
        """Whether a run on such links would be limited by its links."""
        return self.reached >= SHARE_REACHED and self.idle >= SHARE_IDLE

    def limit(self) -> str:
        if self.idle < SHARE_IDLE:
            return (
                f"the {os.cpu_count()} processors: {self.idle:.0%} idle; the lab uses "
                f"{self.lab_cores:.2f} cores, ovs-vswitchd {self.switch_cores:.2f} of them"
            )
        if self.switch_cores > 0.9:
            return f"the switch: ovs-vswitchd uses {self.switch_cores:.2f} of a core"
        slow = "incast" if self.incast_bps < self.broadcast_bps else "broadcast"
        return f"{self.reached:.1%} of the rate arrive ({slow}), with {self.idle:.0%} idle"


@dataclass(frozen=True)
class Highest:
    """The result of a search: all trials, in order."""

    trials: list[Trial]

    @property
    def best(self) -> Trial | None:
        """The trial with the highest rate that was held."""
        return max((each for each in self.trials if each.held), key=_rate, default=None)

    @property
    def limited_by(self) -> str:
        """What limits the next higher rate."""
        broken = [each for each in self.trials if not each.held]
        if not broken:
            return "nothing up to the highest rate that was tried"
        return min(broken, key=_rate).limit()

    def sentence(self) -> str:
        where = f"in the {self.trials[0].datapath} datapath"
        if self.best is None:
            return f"no rate was held {where}; limited by {self.limited_by}"
        best = f"{self.best.rate_bps / 1e6:g} Mbit/s {where}"
        return f"highest link rate for 4 hosts: {best}; beyond, limited by {self.limited_by}"

    def as_json(self) -> dict[str, Any]:
        """The record in `check --deep --json`, in the shape of a capability."""
        return {
            "available": self.best is not None,
            "reason": self.sentence(),
            "enables": "experiments with 4 hosts up to this rate",
            "how": "more and faster processor cores, nothing else running",
            "highest_bps": self.best.rate_bps if self.best else None,
            "limited_by": self.limited_by,
            "tried": [
                asdict(each) | {"reached": each.reached, "held": each.held} for each in self.trials
            ],
        }


_rate = attrgetter("rate_bps")


def search(console: Console, datapath: Wanted = "auto") -> Highest:
    """Climb the ladder of rates until one is not held, then halve the step; about a minute."""
    trials = []
    for trial in climb(partial(attempt, datapath=datapath), time.monotonic() + _LONGEST_S - _LAB_S):
        trials.append(trial)
        console.print(
            f"{trial.datapath:9} {trial.rate_bps / 1e6:6g} Mbit/s -> "
            f"incast {trial.incast_bps / 1e6:.0f}, "
            f"broadcast {trial.broadcast_bps / 1e6:.0f}, {trial.idle:.0%} idle: "
            f"{'held' if trial.held else 'not held'}",
            highlight=False,
        )
    return Highest(trials)


def climb(trial_of: Callable[[int], Trial], deadline_s: float) -> Iterator[Trial]:
    """The trials of the search, in order; a rate that is not held gets a second chance."""
    held = broken = 0
    for rate_mbps in LADDER_MBPS:
        trial = trial_of(rate_mbps * 1_000_000)
        yield trial
        if not trial.held and time.monotonic() < deadline_s:
            trial = trial_of(rate_mbps * 1_000_000)
            yield trial
        if not trial.held:
            broken = trial.rate_bps
            break
        held = trial.rate_bps
        if time.monotonic() >= deadline_s:
            return
    for halvings in itertools.count():
        # "None" would be wrong where only the time was over before a rate was low enough.
        enough = halvings >= _HALVINGS or time.monotonic() >= deadline_s
        if not broken or (enough if held else broken <= _LEAST_BPS):
            return
        trial = trial_of((held + broken) // 2_000_000 * 1_000_000)
        yield trial
        held, broken = (trial.rate_bps, broken) if trial.held else (held, trial.rate_bps)


def attempt(rate_bps: int, *, datapath: Wanted = "auto") -> Trial:
    """Try one rate in a lab of its own, in about four seconds."""
    try:
        found = sandbox.result_of(__name__, {"rate_bps": rate_bps, "datapath": datapath})
    except SandboxError as error:
        raise InputError(f"no lab can be built: {error}") from None
    return Trial(**found)


# The inside


def in_sandbox(request: Mapping[str, Any], _: Messages) -> dict[str, Any]:
    """Build the lab, run the pattern for a second, count what arrives."""
    import topologies
    from testbed.verdict import calibration

    rate_bps = int(request["rate_bps"])
    queue_bytes = max(150_000, int(rate_bps * _QUEUE_S / 8))
    topology = topologies.parse(
        {"name": "star", "workers": WORKERS, "rate_bps": rate_bps, "queue_bytes": queue_bytes}
    )
    shape = topology.model_dump(mode="json")
    config = {
        "topology": shape,
        "impairments": [],
        "datapath": request["datapath"],
        "seed": 1,
    }
    lab = LabSession(config)
    lab.begin()
    lab.build()
    lab.warm_up()
    hosts = lab.info.hosts
    switch = lab.switch.processes["ovs-vswitchd"].pid
    server = hosts["server"]
    workers = [host for host in hosts.values() if host is not server]
    rtt_s = calibration.idle_round_trip_s(lab.info)
    share_bps = _OFFERED * rate_bps / len(workers)
    children = [_forked(host, _receive, host.address) for host in (server, *workers)]
    children.append(_forked(server, _send, [each.address for each in workers], share_bps))
    children += [_forked(each, _send, [server.address], share_bps) for each in workers]
    time.sleep(_WARM_UP_S)
    ticks, spent = process_status.machine_ticks(), process_status.ticks_of_all()
    began_s, before = time.monotonic(), [_frames_read(host) for host in (server, *workers)]
    time.sleep(_TRIAL_S)
    elapsed_s, after = time.monotonic() - began_s, map(_frames_read, (server, *workers))
    at_server, *at_workers = (later - first for first, later in zip(before, after, strict=True))
    gained, spent_later = process_status.machine_ticks().since(ticks), process_status.ticks_of_all()
    ticks_per_core = elapsed_s * os.sysconf("SC_CLK_TCK")
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    trial = Trial(
        rate_bps=rate_bps,
        incast_bps=at_server * _FRAME_BYTES * 8 / elapsed_s,
        broadcast_bps=sum(at_workers) * _FRAME_BYTES * 8 / elapsed_s,
        idle=min(1.0, gained.idle / (ticks_per_core * (os.cpu_count() or 1))),
        lab_cores=(sum(spent_later.values()) - sum(spent.values())) / ticks_per_core,
        switch_cores=(spent_later[switch] - spent[switch]) / ticks_per_core,
        rtt_s=rtt_s,
        datapath=lab.info.datapath,
    )
    return asdict(trial)


def _forked(host: HostInfo, work: Callable[..., None], *arguments: Any) -> int:
    """Do some work in a process of its own in a host; returns the process id."""
    from testbed.lab.kernel import namespaces

    if pid := os.fork():
        return pid
    with contextlib.suppress(BaseException):
        namespaces.enter(host.pid)
        work(*arguments)
    os._exit(0)


def _frames_read(host: HostInfo) -> int:
    """How many datagrams programs of a host have read; each was a frame."""
    lines = Path(f"/proc/{host.pid}/net/snmp").read_text().splitlines()
    names, counts = (line.split() for line in lines if line.startswith("Udp: "))
    return int(counts[names.index("InDatagrams")])


def _messages(count: int, size: int) -> tuple[Any, Any]:
    """The memory and the headers of messages of this size, whose contents nobody looks at."""
    import numpy as np

    from testbed.transport.native.hot_path import address_of
    from testbed.transport.net.udp_socket import Messages

    memory, messages = np.zeros(size, dtype=np.uint8), Messages(count)
    messages.vectors["base"], messages.vectors["bytes"] = address_of(memory), size
    return memory, messages


def _receive(address: str) -> None:
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((address, _PORT))
    for option in (socket.SO_RCVBUF, 33):  # 33 is SO_RCVBUFFORCE, for root only
        with contextlib.suppress(PermissionError):
            sink.setsockopt(socket.SOL_SOCKET, option, 8 << 20)
    _memory, messages = _messages(256, 2048)
    while True:
        while messages.receive(sink.fileno(), 0, 256):
            continue
        time.sleep(0.001)


def _send(addresses: list[str], rate_bps: float) -> None:
    """Send full frames at `rate_bps` to each address, evenly."""
    sinks = []
    for address in addresses:
        sinks.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sinks[-1].connect((address, _PORT))
    _memory, messages = _messages(64, _FRAME_BYTES - _HEADERS_BYTES)
    frames_per_s = rate_bps / 8 / _FRAME_BYTES
    began_s, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began_s) * frames_per_s)
        while sent < due:
            batch = min(due - sent, 64)
            for sink in sinks:
                with contextlib.suppress(OSError):  # a full queue: what is lost, is not sent again
                    messages.send(sink.fileno(), 0, batch)
            sent += batch
        time.sleep(0.002)
