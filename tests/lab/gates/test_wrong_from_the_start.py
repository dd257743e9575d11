"""Three things are wrong before the training, each on another link and seen by a gate."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

FIVE_PERCENT_SLOW = """
_right_rate_message = rate_message

def rate_message(index, link, name):
    from dataclasses import replace
    if name == "server-eth0":
        link = replace(link, rate_bps=link.rate_bps * 95 // 100)
    return _right_rate_message(index, link, name)
"""
CHANGED_LIMIT = """
_right_bfifo = bfifo

def bfifo(index, *, limit_bytes, name="", **others):
    if name == "worker-1-eth0":
        limit_bytes = limit_bytes * {percent} // 100
    return _right_bfifo(index, limit_bytes=limit_bytes, name=name, **others)
"""
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


@pytest.mark.parametrize("percent", [80, pytest.param(120, marks=pytest.mark.long)])
def test_a_slow_link_an_odd_queue_and_lost_probes_are_found(wrong_lab: WrongLab, percent: int):
    results = wrong_lab.run(
        altered_by={
            "testbed.lab.kernel.shaping": FIVE_PERCENT_SLOW,
            "testbed.lab.kernel.rtnetlink": CHANGED_LIMIT.format(percent=percent),
            "testbed.verdict.calibration": DROPPING,
        },
        every_path=True,
        rounds=3,
    )
    slow = assert_invalid(results, "rate_error", where="server to")
    assert 0.045 < slow["value"] < 0.055
    odd = assert_invalid(results, "queue_error", where="worker-1--s1 from worker-1")
    assert 0.1 < odd["value"] <= 0.21
    lost = assert_invalid(results, "idle_loss", where="server")
    assert 0.05 <= lost["value"] <= 0.2
