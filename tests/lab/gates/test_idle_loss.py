"""Something drops packets before the training begins."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

# Before the calibration: one probe of ten that arrives at the server is dropped, and nothing else.
DROPPING = """
_right_warm_up = warm_up

def warm_up(network):
    import subprocess
    from testbed.lab.kernel.shaping import inside
    _right_warm_up(network)
    rules = (
        'add table netdev hole; add chain netdev hole drops '
        '{ type filter hook ingress device "server-eth0" priority 5; }; '
        'add rule netdev hole drops udp length 13 numgen inc mod 10 0 drop'
    )
    subprocess.run([*inside(network.hosts["server"].pid), "nft", rules], check=True)
"""


def test_probes_that_get_lost_on_the_idle_network_are_found(wrong_lab: WrongLab):
    results = wrong_lab.run(altered_by={"testbed.verdict.calibration": DROPPING}, rounds=3)
    gate = assert_invalid(results, "idle_loss", where="server")
    assert 0.05 <= gate["value"] <= 0.2
