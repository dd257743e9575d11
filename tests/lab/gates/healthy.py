"""One small healthy lab of each kind of topology: `ok` with the users' limits and retries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from testbed.cli.options import Execution
from tests.lab.gates.harness import WrongLab

TOPOLOGIES: dict[str, dict[str, Any]] = {
    "star": {"workers": 2},
    "dumbbell": {"workers": 2},
    "leaf-spine": {"workers": 2, "leaves": 2, "spines": 2},
    "fat-tree": {"workers": 1, "k": 2},
    "two-datacentres": {"workers": 2, "core": {"delay_s": 0.005}},
}
# One process switches for all switches: each frame costs it as often as it crosses one.
_MOST_SWITCHES = {"fat-tree": 5}


def verdict(folder: Path, kind: str, held_bps: int) -> dict[str, Any]:
    """Run one of them; returns its status."""
    rate_bps = held_bps // _MOST_SWITCHES.get(kind, 1)
    topology = {"name": kind, "rate_bps": rate_bps, "queue_bytes": 150_000, **TOPOLOGIES[kind]}
    rounds = 20 * rate_bps // held_bps + 1
    lab = WrongLab(folder, rate_bps)
    return lab.run(
        every_path=True, topology=topology, rounds=rounds, retries=Execution.retries
    ).verdict()
