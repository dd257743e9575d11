"""A host uses more of the processors than it may: the kernel does not hold it to its share."""

from __future__ import annotations

import pytest

from testbed.machine.capabilities import Capability
from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = [pytest.mark.lab, pytest.mark.long]

# Every group gets a processor, whatever it is to get.
GENEROUS = """
_right_limit = _limit

def _limit(folder, share):
    _right_limit(folder, 1.0)
"""


def test_a_host_that_uses_more_than_its_share_is_found(
    wrong_lab: WrongLab, found_capabilities: dict[str, Capability]
):
    if not found_capabilities["host-cpu"].available:
        pytest.skip("needs capability host-cpu")
    topology = {"name": "star", "workers": 2, "rate_bps": wrong_lab.rate_bps}
    results = wrong_lab.run(
        altered_by={"testbed.lab.kernel.cgroups": GENEROUS},
        rounds=20,
        topology=topology | {"queue_bytes": 150_000, "host_cpu": {"worker-1": 0.05}},
    )
    gate = assert_invalid(results, "host_cpu", where="worker-1: ")
    assert gate["value"] > 1
