"""A healthy lab of each kind of topology stays `ok`, with the limits that users get."""

from typing import Any

import pytest

from testbed.cli.execution import RETRIES
from tests.lab.conftest import OkOrStalled
from tests.lab.gates.harness import WrongLab

# Runs that stay ok without --long: test_run.py (a star), test_every_kind.py and the tutorial's own
# experiment (dumbbells).
pytestmark = [pytest.mark.lab, pytest.mark.long]

TOPOLOGIES: dict[str, dict[str, Any]] = {
    "star": {"workers": 2},
    "dumbbell": {"workers": 2},
    "leaf-spine": {"workers": 2, "leaves": 2, "spines": 2},
    "fat-tree": {"workers": 1, "k": 2},
}
# One process switches for all switches: each frame costs it as often as it crosses one.
_MOST_SWITCHES = {"fat-tree": 5}


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_a_healthy_lab_is_ok(wrong_lab: WrongLab, kind: str, ok_or_stalled: OkOrStalled):
    held_bps = wrong_lab.rate_bps
    rate_bps = held_bps // _MOST_SWITCHES.get(kind, 1)
    topology = {"name": kind, "rate_bps": rate_bps, "queue_bytes": 150_000, **TOPOLOGIES[kind]}
    rounds = 20 * rate_bps // held_bps + 1
    results = wrong_lab.run(every_path=True, topology=topology, rounds=rounds, retries=RETRIES)
    ok_or_stalled(results.verdict())
