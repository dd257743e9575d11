"""How many of N healthy labs of each topology kind stay ok, with the limits that users get.

`python -m tests.benchmarks.healthy_labs [N]` prints it (default: 20), with the reason of each that
did not, and what the machine was like meanwhile. One lab takes about ten seconds.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from testbed.machine import steadiness
from tests.lab.gates.healthy import TOPOLOGIES, verdict


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    machine = steadiness.probe()
    print(f"this machine: {machine.sentence()}", flush=True)
    if machine.rate_bps is None:
        sys.exit(1)
    stayed = dict.fromkeys(TOPOLOGIES, 0)
    for number in range(1, repetitions + 1):
        for kind in TOPOLOGIES:
            with tempfile.TemporaryDirectory(prefix="healthy-labs-") as folder:
                status = verdict(Path(folder), kind, machine.rate_bps)
            stayed[kind] += status["verdict"] == "ok"
            if reason := status["reason"]:
                now = steadiness.watch().sentence()
                print(f"{number} {kind}: {reason} (now: {now})", flush=True)
    for kind, count in stayed.items():
        print(f"{kind}: {count} of {repetitions} stayed ok")


if __name__ == "__main__":
    main()
