"""Links that delay longer than configured."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

# Whatever delays: the relay and netem both get their settings here.
A_FIFTH_LONGER = """
from dataclasses import replace as _replace

_right_of_link = Middle.of_link

def _of_link(link):
    middle = _right_of_link(link)
    longer_s = middle.settings.delay_s * 1.2
    return _replace(middle, settings=_replace(middle.settings, delay_s=longer_s))

Middle.of_link = staticmethod(_of_link)
"""


def test_a_delay_that_is_a_fifth_too_long_is_found(wrong_lab: WrongLab):
    topology = {"name": "star", "workers": 2, "rate_bps": wrong_lab.rate_bps, "delay_s": 0.005}
    results = wrong_lab.run(
        altered_by={"testbed.lab.delay.delay_settings": A_FIFTH_LONGER}, topology=topology, rounds=8
    )
    gate = assert_invalid(results, "rtt_error")
    # Each of four crossings takes 6 ms instead of 5.
    assert gate["value"] == pytest.approx(0.004, abs=0.0015)
