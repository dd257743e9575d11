"""The switch sends from a buffer that its queues cannot fit into."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

TWO_FRAMES = """
def _enlarge(opened):
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    return tuple(
        opened.getsockopt(socket.SOL_SOCKET, option)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)
    )
"""


def test_a_socket_buffer_of_two_frames_is_found(wrong_lab: WrongLab):
    # Queues of a few frames, so that the switch's sends hardly wait and the training ends.
    results = wrong_lab.run(altered_by={"testbed.lab.openvswitch": TWO_FRAMES}, rounds=3)
    gate = assert_invalid(results, "socket_buffer_bytes")
    assert gate["value"] > 100_000
