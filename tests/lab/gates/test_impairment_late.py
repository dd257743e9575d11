"""The controller does not run when impairments should begin."""

from __future__ import annotations

import time

import pytest

from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab

LOSS = {"kind": "loss", "host": "server", "leg": "gather", "rounds": {"every": 2}, "q": 0.2}


def test_an_impairment_that_begins_late_is_found(wrong_lab: WrongLab):
    def stop_now_and_then(lab: RunningLab) -> None:
        controller = lab.process("controllers")
        for _ in range(18):
            controller.suspend()
            time.sleep(0.05)
            controller.resume()
            time.sleep(0.02)

    results = wrong_lab.run(meanwhile=stop_now_and_then, impairments=[LOSS], rounds=30)
    gate = assert_invalid(results, "impairment_late_s", where="loss-server in round")
    assert 0.01 < gate["value"] < 0.2
