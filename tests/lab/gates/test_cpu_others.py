"""Other programs take the processors that the lab needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab


@pytest.mark.long
def test_programs_that_take_the_processors_are_found_and_named(wrong_lab: WrongLab):
    busy: list[subprocess.Popen[bytes]] = []

    def begin(lab: RunningLab) -> None:
        # In sessions of their own, or the kernel would let all of them share one part of the time.
        words = [sys.executable, "-c", "while True: pass"]
        busy.extend(subprocess.Popen(words, start_new_session=True) for _ in range(4))

    try:
        results = wrong_lab.run(meanwhile=begin)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    gate = assert_invalid(results, "cpu_others", where="python")
    assert gate["value"] > gate["limit"]
