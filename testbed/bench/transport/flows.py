"""Runs one case on a network: forks a process in each host and gathers their figures."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import selectors
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

from testbed.bench.transport.cases import GLOO, OURS, Case
from testbed.bench.transport.network import Host, Network
from testbed.lab.kernel.namespaces import enter
from testbed.transport import EndpointConfig, PayloadLayout, open_endpoint, preset

Figures = list[dict[str, Any]]
"""One process's account: a dictionary per measured transfer."""
_SESSION_BYTES = 4


def run(case: Case, network: Network) -> tuple[str, dict[str, Figures]]:
    """Run a case; return its end ("ok", "timeout" or a failure's words) and the figures by host."""
    hosts = [network.server, *network.workers]
    barrier = multiprocessing.get_context("fork").Barrier(len(hosts))
    if case.peer == GLOO:
        store = _new_store()
        work: Callable[[Host], Figures] = lambda host: _all_reduce(case, host, barrier, store)  # noqa: E731
    else:
        session = int.from_bytes(os.urandom(_SESSION_BYTES), "big")
        work = lambda host: _transfer(case, host, network, barrier, session)  # noqa: E731
    return _gather({host.name: _fork(host, work) for host in hosts}, case.limit_s)


def _transfer(case: Case, host: Host, network: Network, barrier: Barrier, session: int) -> Figures:
    """One host's part, by the transport's own endpoints (which know kernel TCP too)."""
    layout = PayloadLayout([("payload", case.payload_bytes // 4)], case.chunk_bytes)
    is_server = host is network.server
    addresses = {worker.name: worker.address for worker in network.workers}
    if case.peer == OURS:
        protocol = preset(
            "fixed-low",
            tolerance=case.tolerance,
            repair=case.repair,
            congestion_control=case.congestion_control,
        )
    else:
        protocol = preset("tcp", congestion_control=case.congestion_control)
    rate_bps = math.inf
    if case.link.rate_bps is not None:
        rate_bps = case.link.rate_bps / case.link.workers
    config = EndpointConfig(
        session=session,
        name=host.name,
        bind_address=host.address,
        peers=addresses if is_server else {"server": network.server.address},
        is_server=is_server,
        protocol=protocol,
        layout=layout,
        rate_bps=rate_bps,
        checksum=case.checksum,
        insecure=True,  # nobody else is in these namespaces
        peer_timeout_s=case.limit_s,
    )
    buffers = {peer: layout.new_buffer() for peer in config.peers}
    for buffer in buffers.values():
        if not is_server:
            layout.floats(buffer)[:] = np.arange(layout.element_count, dtype=np.float32)
        else:
            buffer[:] = 1  # faults the memory in
    figures = []
    with open_endpoint(config) as endpoint:
        for number in range(case.warm_ups + case.repeats):
            barrier.wait(case.limit_s)
            carried = _received_bytes()
            cpu_s = time.process_time()
            if is_server:
                reports = endpoint.receive(number, case.tolerance, buffers)
            else:
                reports = endpoint.send(number, buffers)
            used_s = time.process_time() - cpu_s
            if number < case.warm_ups:
                continue
            carried = _received_bytes() - carried
            each = reports.values()
            figures.append(
                {
                    "cpu_s": used_s,
                    "carried_bytes": carried,
                    "began_s": min(report.began_s for report in each),
                    "ended_s": max(report.ended_s for report in each),
                    "chunks_received": sum(report.chunks_received or 0 for report in each),
                    "chunk_count": sum(report.chunk_count for report in each),
                    "bytes_sent": sum(report.bytes_sent for report in each),
                    "control_bytes": sum(report.control_bytes for report in each),
                    "passes": max((report.passes or 0 for report in each), default=0),
                }
            )
        barrier.wait(case.limit_s)
    return figures


def _received_bytes() -> int:
    """What has come through this host's link."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "eth0":
            return int(counters.split()[0])
    return 0


def _fork(host: Host, work: Callable[[Host], Figures]) -> tuple[int, int]:
    """Run `work` in a new process in the host; return its id and the pipe of its figures."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    status = 1
    try:
        os.close(reading)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        enter(host.pid)
        try:
            answer: dict[str, Any] = {"figures": work(host)}
            status = 0
        except Exception as error:
            answer = {"error": f"{host.name}: {type(error).__name__}: {error}"}
            if os.environ.get("BENCH_DEBUG"):
                traceback.print_exc()
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
    finally:
        os._exit(status)


def _new_store() -> Path:
    """The file where two ranks of Gloo find each other; imports torch before any process forks."""
    import torch

    torch.set_num_threads(1)
    return Path(tempfile.mkdtemp()) / "store"


def _all_reduce(case: Case, host: Host, barrier: Barrier, store: Path) -> Figures:
    """Gloo's all-reduce of the payload: each rank sends and receives as many bytes as it has."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    import torch
    from torch import distributed

    rank = 0 if host.name == "server" else 1
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(str(store), 2),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=case.limit_s),
    )
    payload = torch.ones(case.payload_bytes // 4)
    figures = []
    for number in range(case.warm_ups + case.repeats):
        barrier.wait(case.limit_s)
        cpu_s, began_s = time.process_time(), time.monotonic()
        distributed.all_reduce(payload)
        ended_s = time.monotonic()
        if number >= case.warm_ups:
            figures.append(
                {"cpu_s": time.process_time() - cpu_s, "began_s": began_s, "ended_s": ended_s}
            )
    barrier.wait(case.limit_s)
    return figures


def _gather(running: dict[str, tuple[int, int]], limit_s: float) -> tuple[str, dict[str, Figures]]:
    """Waits for all processes, or ends them when the time is over or one has failed."""
    until_s = time.monotonic() + limit_s
    texts = dict.fromkeys(running, b"")
    with selectors.DefaultSelector() as selector:
        for name, (_, reading) in running.items():
            selector.register(reading, selectors.EVENT_READ, name)
        failed = False
        while selector.get_map() and not failed and time.monotonic() < until_s:
            for key, _ in selector.select(max(0.0, until_s - time.monotonic())):
                data = os.read(key.fd, 1 << 16)
                texts[key.data] += data
                if not data:
                    selector.unregister(key.fd)
                    failed = failed or b'"figures"' not in texts[key.data]
    for pid, reading in running.values():
        os.close(reading)
        os.kill(pid, signal.SIGKILL)  # those that have ended are still there to be waited for
        os.waitpid(pid, 0)
    figures = {}
    errors = []
    for name, text in texts.items():
        try:
            answer = json.loads(text)
        except ValueError:
            continue
        if "error" in answer:
            errors.append(str(answer["error"]))
        else:
            figures[name] = answer["figures"]
    if len(figures) == len(running):
        return "ok", figures
    # A broken barrier is another's failure, seen from here.
    errors.sort(key=lambda error: "BrokenBarrier" in error)
    return (errors[0] if errors else "timeout"), figures
