"""Other programs take the processors that the lab needs."""

from __future__ import annotations

import contextlib

import pytest

from tests.busy import busy_process
from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab


@pytest.mark.long
def test_programs_that_take_the_processors_are_found_and_named(wrong_lab: WrongLab):
    with contextlib.ExitStack() as programs:

        def begin(lab: RunningLab) -> None:
            # In sessions of their own, or the kernel would let all share one part of the time.
            for _ in range(4):
                programs.enter_context(busy_process(start_new_session=True))

        results = wrong_lab.run(meanwhile=begin)
    gate = assert_invalid(results, "cpu_others", where="python")
    assert gate["value"] > gate["limit"]
