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
from typing import Any

from testbed.bench.transport import flows
from testbed.bench.transport.cases import select
from testbed.bench.transport.network import LinkKind, Network, build
from testbed.bench.transport.records import record_of
from testbed.lab import sandbox
from testbed.lab.kernel.commands import CommandError

# After its last result it only takes its networks down.
_END_TIMEOUT_S = 30.0


class BenchError(RuntimeError):
    """The sandbox ended before all cases were measured; the message is its last line."""


def measure(
    pattern: str, *, quick: bool, begins: Callable[[str], None] = lambda name: None
) -> Iterator[dict[str, Any]]:
    """Run the cases that match and yield their records; `begins` is told each name before."""
    with tempfile.TemporaryFile() as errors:  # a pipe would fill up, since it is read last
        arguments = ["--cases", pattern, *(["--quick"] if quick else [])]
        process = sandbox.start(
            __spec__.name, *arguments, stdout=subprocess.PIPE, stderr=errors.fileno()
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                message = json.loads(line)
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
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    tempfile.tempdir = str(sandbox.prepare())  # it goes with the sandbox, however that ends
    with contextlib.suppress(OSError):  # where allowed: less of what else the machine does
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is not a result
    at: LinkKind | None = None
    network: Network | None = None
    for case in select(given.cases, quick=given.quick):
        print(json.dumps({"begins": case.name}), file=results)
        try:
            if case.link != at:
                if network is not None:
                    network.close()
                    network = None
                network, at = build(case.link), case.link
            assert network is not None
            status, figures = flows.run(case, network)
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
