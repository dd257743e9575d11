"""Queues hold clumps: packets of several segments that are cut apart behind them."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

# The kernel's TCP may build packets of 64 kB again, and nobody is told.
KERNEL = """
def single_segments(index, *, name=""):
    body = _link_header(index) + attribute(_GSO_MAX_SEGMENTS, struct.pack("=I", 65535))
    return Message(_SET_LINK, 0, body, f"segments of {name or index}")

Rtnetlink.most_segments = lambda self, interface: 1
"""


def test_clumps_in_a_queue_are_found(wrong_lab: WrongLab):
    arms = {"clumps": {"protocol": "tcp"}}
    altered = {"testbed.lab.kernel.rtnetlink": KERNEL}
    results = wrong_lab.run(altered_by=altered, arms=arms, rounds=20)
    gate = assert_invalid(results, "packet_bytes", where="--s1 from ", arm="clumps")
    assert gate["value"] > 8_000
    assert not gate["where"].endswith(" s1")  # clumps are a host's
