"""A queue whose limit was set wrongly."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

CHANGED_LIMIT = """
_right_bfifo = bfifo

def bfifo(index, *, limit_bytes, name=""):
    if name == "server-eth0":
        limit_bytes = limit_bytes * {percent} // 100
    return _right_bfifo(index, limit_bytes=limit_bytes, name=name)
"""


@pytest.mark.parametrize("percent", [80, pytest.param(120, marks=pytest.mark.long)])
def test_a_queue_whose_limit_is_off_by_a_fifth_is_found(wrong_lab: WrongLab, percent: int):
    change = CHANGED_LIMIT.format(percent=percent)
    results = wrong_lab.run(altered_by={"testbed.lab.kernel.rtnetlink": change}, rounds=3)
    gate = assert_invalid(results, "queue_error", where="server--s1 from server")
    assert 0.1 < gate["value"] <= 0.21
