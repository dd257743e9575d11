"""Losses that are not the configured ones, and a switch that sends from a buffer too small."""

from __future__ import annotations

import os

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

# Every filter loses half of the packets that its table says.
HALF = """
import dataclasses

_right_init = {filter}.__init__

def _init(self, *arguments):
    *first, losses = arguments
    _right_init(self, *first, dataclasses.replace(losses, lost=losses.lost[::2]))

{filter}.__init__ = _init
"""
EVERY_ROUND = {"kind": "loss", "name": "tenth", "rounds": {"every": 1, "from": 0}, "q": 0.1}


TWO_FRAMES = """
def _enlarge(opened):
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    return tuple(
        opened.getsockopt(socket.SOL_SOCKET, option)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)
    )
"""


@pytest.mark.parametrize(
    ("module", "name", "target"),
    [
        ("packet_filter", "PacketFilter", {"host": "server"}),
        pytest.param(
            "xdp_filter", "XdpFilter", {"link": ["worker-1", "s1"]}, marks=pytest.mark.long
        ),
    ],
)
def test_other_losses_than_those_of_the_table_and_a_socket_buffer_of_two_frames_are_found(
    wrong_lab: WrongLab, module: str, name: str, target: dict[str, object]
):
    if name == "XdpFilter" and os.geteuid() != 0:
        pytest.skip("loading an XDP program needs real root")
    results = wrong_lab.run(
        altered_by={
            f"testbed.lab.kernel.{module}": HALF.format(filter=name),
            "testbed.lab.openvswitch": TWO_FRAMES,
        },
        rounds=10,
        impairments=[EVERY_ROUND | target],
    )
    gate = assert_invalid(results, "loss_error", where="tenth")
    assert 0.02 < gate["value"] < 0.1
    assert assert_invalid(results, "socket_buffer_bytes")["value"] > 100_000
