"""Neither framework's controller survives an exception in one of its threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = ("ryu", "os-ken")
FAILING = {
    "thread": "hub.spawn(boom); hub.sleep(5)",
    "later": "hub.spawn_after(0.01, boom); hub.sleep(5)",
    # An event loop catches what a handler raises; the program below does the same.
    "handler": "set_ev_cls(Event)(boom)(None)",
}
PROGRAM = """
from controllers import framework_choice
framework_choice.choose({framework!r})
from controllers.framework import hub, set_ev_cls

class Event:
    pass

def boom(*_):
    raise LookupError("the timeline broke")

try:
    {failing}
except LookupError:
    pass
print("still alive")
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("place", FAILING)
def test_an_exception_ends_the_controller(framework, place):
    program = PROGRAM.format(framework=framework, failing=FAILING[place])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done
    assert "LookupError: the timeline broke" in done.stderr
    assert "still alive" not in done.stdout
