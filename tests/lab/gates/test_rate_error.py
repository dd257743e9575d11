"""A link whose rate was set wrongly."""

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


def test_a_link_that_is_five_percent_slow_is_found(wrong_lab: WrongLab):
    results = wrong_lab.run(altered_by={"testbed.lab.kernel.shaping": FIVE_PERCENT_SLOW}, rounds=3)
    gate = assert_invalid(results, "rate_error", where="server to")
    assert 0.045 < gate["value"] < 0.055
