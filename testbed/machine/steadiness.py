"""Probes what this machine holds now: `./lab run` and tests choose their rates by it."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.lab import sandbox
from testbed.lab.kernel import link_counters, namespaces, process_status
from testbed.lab.network import HostInfo
from testbed.lab.sandbox import SandboxError
from testbed.run.session import LabSession
from testbed.shared.messages import Messages
from testbed.shared.yaml_input import InputError
from testbed.transport.net.udp import SO_RCVBUFFORCE
from testbed.verdict.gates import DEFAULTS

RATES_BPS = (100_000_000, 50_000_000, 20_000_000)
# Of a rate in both directions at once, for 1.2 s. A pause of the senders alone takes some per cent:
# the probe chooses what is tried, and the gates of each run judge it.
SHARE_ARRIVED = 0.9
_WATCHED_S = 1.0
_SLEEP_S = 0.002
_MOST_OTHERS = DEFAULTS["cpu_others"]

_WORKERS = 3
_TRIAL_S = 1.2
_WARM_UP_S = 0.3
# A little more than the link carries, so that its queue is never empty.
_OFFERED = 1.1
_QUEUE_S = 0.012
_FRAME_BYTES, _HEADERS_BYTES = 1514, 42
_PORT = 47500


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One second of a machine: how late a thread wakes up after 2 ms, and what others took."""

    late_p50_s: float
    late_p99_s: float
    others: float
    stolen: float

    def sentence(self) -> str:
        hypervisor = f" and the hypervisor {self.stolen:.0%}" if self.stolen >= 0.005 else ""
        busy = self.others > _MOST_OTHERS
        advice = "; runs may be invalid; close other programs" if busy else ""
        return (
            f"timers {self.late_p50_s * 1e3:.2f} ms late, p99 {self.late_p99_s * 1e3:.2f} ms; "
            f"others take {self.others:.0%}{hypervisor} of {os.cpu_count()} processors{advice}"
        )


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The rates that a probe tried, each with the share that arrived."""

    moment: Moment
    trials: Sequence[tuple[int, float]]

    @property
    def rate_bps(self) -> int | None:
        """Return the highest of the tried rates that arrives at four hosts; None: none does."""
        return next((rate for rate, share in self.trials if share >= SHARE_ARRIVED), None)

    def sentence(self) -> str:
        rates = f"4 hosts hold {self.rate_bps / 1e6:g} Mbit/s" if self.rate_bps else "no rate held"
        if self.rate_bps != self.trials[0][0]:
            shares = (f"{share:.0%} of {rate / 1e6:g}" for rate, share in self.trials)
            rates += f" (there arrived {', '.join(shares)} Mbit/s)"
        return f"{rates}; {self.moment.sentence()}; kernel {platform.release()}"


def watch(duration_s: float = _WATCHED_S) -> Moment:
    """Sleep in short naps, and see how late they end and what others do meanwhile."""
    late_s: list[float] = []
    before, own_s = process_status.machine_ticks(), time.process_time()
    end_s = time.monotonic() + duration_s
    while (began_s := time.monotonic()) < end_s:
        time.sleep(_SLEEP_S)
        late_s.append(time.monotonic() - began_s - _SLEEP_S)
    gained, own_s = process_status.machine_ticks().since(before), time.process_time() - own_s
    late_p50_s, late_p99_s = np.quantile(late_s, [0.5, 0.99])
    return Moment(
        late_p50_s=float(late_p50_s),
        late_p99_s=float(late_p99_s),
        others=gained.others(own_s * os.sysconf("SC_CLK_TCK")) if gained.all > 0 else 0.0,
        stolen=gained.stolen / gained.all if gained.all > 0 else 0.0,
    )


def probe(rates_bps: Sequence[int] = RATES_BPS) -> Findings:
    """Watch timers and processors, then find the first of these rates that a lab holds."""
    moment = watch()
    trials = []
    for rate_bps in rates_bps:
        trials.append((rate_bps, share_arrived(rate_bps)))
        if trials[-1][1] >= SHARE_ARRIVED:
            break
    return Findings(moment=moment, trials=trials)


def share_arrived(rate_bps: int) -> float:
    """Return the share of a link rate that arrives in the worse direction, in an own lab."""
    try:
        return float(sandbox.result_of(__name__, {"rate_bps": rate_bps})["share"])
    except SandboxError as error:
        raise InputError(f"no lab can be built: {error}") from None


# The inside


def in_sandbox(request: Mapping[str, Any], _: Messages) -> dict[str, Any]:
    """Build the lab, let all workers send to the server and it to them, count what arrives."""
    import topologies

    rate_bps = int(request["rate_bps"])
    queue_bytes = max(150_000, int(rate_bps * _QUEUE_S / 8))
    topology = topologies.parse(
        {"name": "star", "workers": _WORKERS, "rate_bps": rate_bps, "queue_bytes": queue_bytes}
    )
    document = topology.model_dump(mode="json")
    lab = LabSession({"topology": document, "impairments": [], "datapath": "auto", "seed": 1})
    lab.begin()
    lab.build()
    lab.warm_up()
    hosts = [*lab.info.hosts.values()]
    server = lab.info.hosts["server"]
    workers = [host for host in hosts if host is not server]
    share_bps = _OFFERED * rate_bps / len(workers)
    # These processes end with the sandbox.
    for host in hosts:
        _fork(host, _receive, host.address)
    _fork(server, _send, [worker.address for worker in workers], share_bps)
    for worker in workers:
        _fork(worker, _send, [server.address], share_bps)
    time.sleep(_WARM_UP_S)
    began_s = time.monotonic()
    before = {host.name: _frames_read(host) for host in hosts}
    time.sleep(_TRIAL_S)
    elapsed_s = time.monotonic() - began_s
    read = {host.name: _frames_read(host) - before[host.name] for host in hosts}
    at_server = read.pop(server.name)
    frames = min(at_server, sum(read.values()))
    return {"share": frames * _FRAME_BYTES * 8 / elapsed_s / rate_bps}


def _fork(host: HostInfo, work: Callable[..., None], *arguments: Any) -> None:
    if os.fork():
        return
    with contextlib.suppress(BaseException):
        namespaces.enter(host.pid)
        work(*arguments)
    os._exit(0)


def _frames_read(host: HostInfo) -> int:
    """Count the frames that programs of a host have read."""
    return link_counters.read(host.pid).protocols["Udp.InDatagrams"]


def _receive(address: str) -> None:
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((address, _PORT))
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    with contextlib.suppress(PermissionError):
        sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    sink.setblocking(False)
    memory = bytearray(2048)
    while True:
        with contextlib.suppress(BlockingIOError):
            while True:
                sink.recv_into(memory)
        time.sleep(0.001)


def _send(addresses: list[str], rate_bps: float) -> None:
    """Send full frames at `rate_bps` to each address, evenly."""
    sinks = []
    for address in addresses:
        sinks.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sinks[-1].connect((address, _PORT))
        sinks[-1].setblocking(False)
    datagram = bytes(_FRAME_BYTES - _HEADERS_BYTES)
    frames_per_s = rate_bps / 8 / _FRAME_BYTES
    began_s, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began_s) * frames_per_s)
        for _ in range(due - sent):
            for sink in sinks:
                with contextlib.suppress(OSError):  # a full queue: what is lost, is not sent again
                    sink.send(datagram)
        sent = due
        time.sleep(0.002)
