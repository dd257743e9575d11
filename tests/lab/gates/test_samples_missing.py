"""The sampler, whose samples other gates judge, stops; that it dies is in test_link_settings.py."""

from __future__ import annotations

import time

import pytest

from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab


@pytest.mark.long
def test_a_sampler_that_stops_for_a_while_is_found(wrong_lab: WrongLab):
    def stop(lab: RunningLab) -> None:
        sampler = lab.process("testbed.sampling")
        sampler.suspend()
        time.sleep(2)
        sampler.resume()

    gate = assert_invalid(wrong_lab.run(meanwhile=stop), "samples_missing", where="was late")
    assert 0.2 < gate["value"] < 0.9
    assert "the longest time without a sample was 2." in gate["note"]
