"""Measures cases inside a sandbox, which is one process with a network of its own.

Run as a module it is the inside: it runs the cases it is told and prints a JSON line for each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
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

# After its last result it only takes its networks down.
_END_TIMEOUT_S = 30.0


class BenchError(RuntimeError):
    """The sandbox ended before all cases were measured; the message is its last line."""


def measure(
    selection: Selection,
    *,
    peer: Peer | None = None,
    begins: Callable[[str], None] = lambda name: None,
) -> Iterator[dict[str, Any]]:
    """Run the cases that match and yield their records; `begins` is told each name before."""
    with tempfile.TemporaryFile() as errors:  # a pipe would fill up, since it is read last
        arguments = ["--cases", selection.pattern, "--size", selection.size]
        if peer is not None:
            arguments += ["--peer", peer.name, peer.adapter, str(peer.checkout)]
        process = sandbox.start(
            __spec__.name, *arguments, stdout=subprocess.PIPE, stderr=errors.fileno()
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                message = json.loads(line)
                if "refused" in message:
                    raise InputError(message["refused"])
                if "begins" in message:
                    begins(message["begins"])
                else:
                    yield message
            if _status(process) != 0:
                errors.seek(0)
                printed = errors.read().decode(errors="replace").strip()
                last = printed.splitlines()[-1] if printed else "no words"
                raise BenchError(f"the benchmark's sandbox ended: {last}")
        finally:
            sandbox.stop(process)
            process.stdout.close()


def _status(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None


# The inside


def main() -> None:
    """Run the cases; end when all are done, or when standard input closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default="*")
    parser.add_argument("--size", default="usual")
    parser.add_argument("--peer", nargs=3)
    given = parser.parse_args()
    tempfile.tempdir = str(sandbox.prepare())  # it goes with the sandbox, however that ends
    with contextlib.suppress(OSError):  # where allowed: less of what else the machine does
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is not a result
    peer = None
    if given.peer is not None:
        name, adapter, checkout = given.peer
        peer = Peer(name=name, adapter=adapter, checkout=Path(checkout))
        if (refused := flows.check(peer)) is not None:
            print(json.dumps({"refused": refused}), file=results)
            return
    selection = Selection(pattern=given.cases, size=given.size, other=peer.name if peer else None)
    at: LinkKind | None = None
    network: Network | None = None
    for case in selection.cases():
        print(json.dumps({"begins": case.name}), file=results)
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
        print(json.dumps(record_of(case, status, figures)), file=results)
    if network is not None:
        network.close()


if __name__ == "__main__":
    # Forked processes must not inherit the thread that watches the lifeline: forking is done by the
    # main thread only, and the children end with this process's namespace.
    sandbox.end_with_lifeline()
    main()
