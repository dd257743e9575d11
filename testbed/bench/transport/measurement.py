"""Measures cases inside a sandbox, which is one process with a network of its own."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from testbed.bench.peer.adapter import Peer
from testbed.bench.transport import flows
from testbed.bench.transport.cases import Selection
from testbed.bench.transport.network import LinkKind, Network, build
from testbed.bench.transport.records import record_of
from testbed.lab import sandbox
from testbed.lab.kernel.commands import CommandError
from testbed.shared.input_error import InputError
from testbed.shared.messages import MessageError, Messages


class BenchError(RuntimeError):
    """The sandbox ended before all cases were measured; the message is its last line."""


def measure(
    selection: Selection,
    *,
    peer: Peer | None = None,
    begins: Callable[[str], None] = lambda name: None,
) -> Iterator[dict[str, Any]]:
    """Run the cases that match and yield their records; `begins` is told each name before."""
    order: dict[str, Any] = {"cases": selection.pattern, "size": selection.size, "peer": None}
    if peer is not None:
        order["peer"] = {**vars(peer), "checkout": str(peer.checkout)}
    with sandbox.start(__name__) as box:
        try:
            box.messages.send(order)
            while "done" not in (message := box.messages.receive()[0]):
                if "refused" in message:
                    raise InputError(message["refused"])
                if "error" in message:
                    raise BenchError(f"the benchmark's sandbox ended: {message['error']}")
                if "begins" in message:
                    begins(message["begins"])
                else:
                    yield message
        except MessageError:
            last = box.last_words() or "no words"
            raise BenchError(f"the benchmark's sandbox ended: {last}") from None


# The inside


def in_sandbox(order: Mapping[str, Any], messages: Messages) -> dict[str, Any]:
    """Run the cases; say which begins, and its record."""
    tempfile.tempdir = str(sandbox.prepare())  # it goes with the sandbox, however that ends
    with contextlib.suppress(OSError):  # where allowed: less of what else the machine does
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    peer = None
    if order["peer"] is not None:
        peer = Peer(**order["peer"] | {"checkout": Path(order["peer"]["checkout"])})
        if (refused := flows.check(peer)) is not None:
            return {"refused": refused}
    name = peer.name if peer else None
    selection = Selection(pattern=order["cases"], size=order["size"], other=name)
    at: LinkKind | None = None
    network: Network | None = None
    for case in selection.cases():
        messages.send({"begins": case.name})
        try:
            if case.link != at:
                if network is not None:
                    network.close()
                    network = None
                network, at = build(case.link), case.link
            assert network is not None
            status, figures = flows.run(case, network, peer)
        except CommandError as error:
            at = None
            status, figures = f"unsupported: {error}", {}
        messages.send(record_of(case, status, figures))
    if network is not None:
        network.close()
    return {"done": True}
