"""Measures cases in a sandbox, which has networks of its own: a process in each host of a case."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from testbed.bench import coordinator, peer, records
from testbed.bench.cases import GLOO, LARGEST_FIRST, OURS, Case, Selection
from testbed.bench.coordinator import OPEN_LIMIT_S, Figures, Participant, Process
from testbed.bench.network import Host, LinkKind, Network, build, queue_bytes
from testbed.bench.peer import End, Peer
from testbed.lab import sandbox
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.namespaces import enter
from testbed.shared.input_error import InputError
from testbed.shared.messages import MessageError, Messages
from testbed.transport import Credentials, EndpointConfig, PayloadLayout, open_endpoint, preset
from testbed.transport.net import keys
from testbed.transport.wire import DATA_PORTS

_CONTROL_PORT = 46999  # below the ports on which links lose


class BenchError(RuntimeError):
    """The sandbox ended before all cases were measured; the message is its last line."""


def measure(selection: Selection, other: Peer | None) -> Iterator[dict[str, Any]]:
    order = {"selection": vars(selection), "peer": other and vars(other)}
    with sandbox.start(__name__) as box:
        try:
            box.messages.send(order)
            while "done" not in (message := box.messages.receive()[0]):
                if "refused" in message:
                    raise InputError(message["refused"])
                if "error" in message:
                    raise BenchError(f"the benchmark's sandbox ended: {message['error']}")
                yield message
        except MessageError:
            last = box.last_words() or "no words"
            raise BenchError(f"the benchmark's sandbox ended: {last}") from None


# The inside


def in_sandbox(order: Mapping[str, Any], messages: Messages) -> dict[str, Any]:
    tempfile.tempdir = str(sandbox.prepare())  # it goes with the sandbox, however that ends
    with contextlib.suppress(OSError):  # where allowed: less of what else the machine does
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    other = None if order["peer"] is None else Peer(**order["peer"])
    if other is not None and (refused := _refusal(other)) is not None:
        return {"refused": refused}
    at: LinkKind | None = None
    network: Network | None = None
    for case in Selection(**order["selection"]).cases():
        try:
            if case.link != at:
                if network is not None:
                    network.close()
                    network = None
                network, at = build(case.link), case.link
            assert network is not None
            status, figures = _run(case, network, other)
        except CommandError as error:
            at = None
            status, figures = f"unsupported: {error}", {}
        messages.send(records.record_of(case, status, figures))
    if network is not None:
        network.close()
    return {"done": True}


def _run(case: Case, network: Network, other: Peer | None) -> tuple[str, dict[str, Figures]]:
    if network.losses is not None:
        network.losses.take()
    status, figures = coordinator.coordinate(
        _processes(case, network, other),
        warm_ups=case.warm_ups,
        limit_s=case.limit_s,
        finished=lambda figures: records.is_finished(case, figures),
    )
    if status == "ok" and network.losses is not None and network.losses.take().met == 0:
        status = f"failed: its data did not go to port {DATA_PORTS[0]}, so the link lost nothing"
    return status, figures


def _processes(case: Case, network: Network, other: Peer | None) -> dict[str, Process]:
    hosts = [network.server, *network.workers]
    if case.is_other:
        assert other is not None
        return {host.name: _start_other(case, host, network, other) for host in hosts}
    if case.peer == GLOO:
        store = _new_store()
        work = functools.partial(_all_reduce, case, store=store)
    else:
        session = secrets.randbits(32)
        if case.authenticate:
            keys.make(_keys(), [host.name for host in hosts])
        work = functools.partial(_transfer, case, network=network, session=session)

    def begin(host: Host, participant: Participant) -> None:
        enter(host.pid)
        work(host, participant)

    return {host.name: coordinator.start(functools.partial(begin, host)) for host in hosts}


def _refusal(other: Peer) -> str | None:
    process = peer.start(other.adapter, Path(other.checkout), lambda: None, _folder())
    status, _ = coordinator.coordinate(
        {other.name: process}, warm_ups=0, limit_s=OPEN_LIMIT_S, finished=lambda _: True
    )
    return None if status == "ok" else status.removeprefix("failed: ")


def _start_other(case: Case, host: Host, network: Network, other: Peer) -> Process:
    end = End(
        checkout=Path(other.checkout),
        is_server=host is network.server,
        server_address=network.server.address,
        control_port=_CONTROL_PORT,
        data_port=DATA_PORTS[0],
        rate_bps=case.rate_bps or math.inf,
        tolerance=case.tolerance,
        chunk_bytes=case.chunk_bytes,
        elements=case.payload_bytes // 4,
    )
    inside = functools.partial(enter, host.pid)
    return peer.start(other.adapter, end.checkout, inside, _folder(), end)


def _folder() -> Path:
    """Make a folder that everyone may write to; it goes with the sandbox."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    return folder


def _keys() -> Path:
    return Path(tempfile.gettempdir()) / "keys"


def _transfer(
    case: Case, host: Host, participant: Participant, *, network: Network, session: int
) -> None:
    """Do one host's part, by the transport's own endpoints (which know kernel TCP too)."""
    layout = PayloadLayout([("payload", case.payload_bytes // 4)], case.chunk_bytes)
    is_server = host is network.server
    addresses = {worker.name: worker.address for worker in network.workers}
    if case.peer == OURS:
        protocol = preset(
            "fixed-low",
            tolerance=case.tolerance,
            repair=case.repair,
            congestion_control=case.congestion_control,
            order=case.order,
        )
    else:
        protocol = preset("tcp", congestion_control=case.congestion_control)
    peers = addresses if is_server else {"server": network.server.address}
    credentials = Credentials.of(_keys(), host.name, peers) if case.authenticate else None
    config = EndpointConfig(
        session=session,
        name=host.name,
        bind_address=host.address,
        peers=peers,
        is_server=is_server,
        protocol=protocol,
        layout=layout,
        rate_bps=case.rate_bps or math.inf,
        queue_bytes=queue_bytes(case.link) / len(network.workers),
        credentials=credentials,
        encrypted=case.encrypt,
        insecure=credentials is None,  # nobody else is in these namespaces
        peer_timeout_s=case.limit_s,
    )
    buffers = {peer: layout.new_buffer() for peer in config.peers}
    for buffer in buffers.values():
        if is_server:
            buffer[:] = 1  # faults the memory in
        elif case.order == LARGEST_FIRST:  # rising values would give a plain backward order
            random = np.random.default_rng(1)
            layout.floats(buffer)[:] = random.random(layout.element_count, dtype=np.float32)
        else:
            layout.floats(buffer)[:] = np.arange(layout.element_count, dtype=np.float32)
    with open_endpoint(config) as endpoint:
        participant.ready()
        for number in itertools.count():
            if not participant.next_transfer():
                break
            cpu_s = time.process_time()
            if is_server:
                reports = endpoint.receive(number, case.tolerance, buffers)
            else:
                reports = endpoint.send(number, buffers)
            used_s = time.process_time() - cpu_s
            flows = reports.values()
            participant.report(
                {
                    "cpu_s": used_s,
                    "began_s": min(flow.began_s for flow in flows),
                    "ended_s": max(flow.ended_s for flow in flows),
                    "chunks_received": sum(flow.chunks_received or 0 for flow in flows),
                    "chunk_count": sum(flow.chunk_count for flow in flows),
                    "bytes_sent": sum(flow.bytes_sent for flow in flows),
                    "control_bytes": sum(flow.control_bytes for flow in flows),
                    "passes": max((flow.passes or 0 for flow in flows), default=0),
                }
            )


def _new_store() -> Path:
    """Make the file of two ranks of Gloo; import torch before any process forks."""
    import torch

    torch.set_num_threads(1)
    return Path(tempfile.mkdtemp()) / "store"


def _all_reduce(case: Case, host: Host, participant: Participant, *, store: Path) -> None:
    """Have Gloo all-reduce the payload: each rank sends and receives as many bytes as it has."""
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
    participant.ready()
    while participant.next_transfer():
        cpu_s, began_s = time.process_time(), time.monotonic()
        distributed.all_reduce(payload)
        ended_s = time.monotonic()
        used_s = time.process_time() - cpu_s
        participant.report({"cpu_s": used_s, "began_s": began_s, "ended_s": ended_s})
