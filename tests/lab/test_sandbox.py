"""A sandbox from outside: its output is read to the end, or for as long as its caller allows."""

from __future__ import annotations

import time

import pytest

from testbed.lab import sandbox

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]


def python(code: str) -> tuple[str, ...]:
    """Arguments of a module that runs some code once and prints how long that took."""
    return ("timeit", "-n", "1", "-r", "1", code)


def test_what_a_sandbox_says_beside_its_output_does_not_stop_it():
    """More than a pipe holds, before the first word of output."""
    output, errors = sandbox.output_of(*python("import sys; sys.stderr.write('x' * 1_000_000)"))
    assert output.startswith(b"1 loop")
    assert errors == "x" * 1_000_000


def test_a_sandbox_that_takes_too_long_is_ended_and_says_so():
    began_s = time.monotonic()
    endless = python("print('a word', flush=True); import time; time.sleep(100)")
    output, errors = sandbox.output_of(*endless, timeout_s=1.5)
    assert time.monotonic() - began_s < 20
    assert output == b"a word\n"
    assert errors == "timeit: not done within 1.5 s"
