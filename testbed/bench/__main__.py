"""The first process of the benchmark's sandbox: runs the cases it is told, a JSON line for each."""

from __future__ import annotations

import argparse
import contextlib
import json
import os

from testbed.bench import flows
from testbed.bench.cases import select
from testbed.bench.network import LinkKind, Network, build
from testbed.bench.results import record_of
from testbed.lab import sandbox
from testbed.lab.kernel.commands import CommandError, run


def main() -> None:
    """Ends when all cases are done, or when standard input closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default="*")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    with contextlib.suppress(OSError):  # where allowed: less of what else the machine does
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is not a result
    run(["ip", "link", "set", "lo", "up"])
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
    if os.getpid() == 1:
        # Forked processes must not inherit the thread that watches the lifeline: forking is
        # done by the main thread only, and the children end with this process's namespace.
        sandbox.end_with_lifeline()
    main()
