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
# Our endpoints let the kernel cut large sends.
ENDPOINT = """
class UdpSocket(UdpSocket):
    def __init__(self, **settings):
        super().__init__(**settings | {"segmentation": True})
"""


@pytest.mark.parametrize(
    ("protocol", "module", "change", "least_bytes"),
    [
        ("tcp", "testbed.lab.kernel.rtnetlink", KERNEL, 8_000),
        pytest.param(
            "fixed-low", "testbed.transport.net.udp_socket", ENDPOINT, 2_000, marks=pytest.mark.long
        ),
    ],
)
def test_clumps_in_a_queue_are_found(
    wrong_lab: WrongLab, protocol: str, module: str, change: str, least_bytes: int
):
    arms = {"clumps": {"protocol": protocol}}
    results = wrong_lab.run(altered_by={module: change}, arms=arms, rounds=20)
    gate = assert_invalid(results, "packet_bytes", where="--s1 from ", arm="clumps")
    assert gate["value"] > least_bytes
    assert not gate["where"].endswith(" s1")  # clumps are a host's
