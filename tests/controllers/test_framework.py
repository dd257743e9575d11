"""The controller does not survive an exception in one of the framework's threads."""

from __future__ import annotations

import pytest

from tests.cli.test_verbs import python

FAILING = {
    "thread": "hub.spawn(boom); hub.sleep(5)",
    "later": "hub.spawn_after(0.01, boom); hub.sleep(5)",
    # An event loop catches what a handler raises; the program below does the same.
    "handler": "set_ev_cls(Event)(boom)(None)",
}
PROGRAM = """
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


@pytest.mark.parametrize("place", FAILING)
def test_an_exception_ends_the_controller(place):
    done = python("-c", PROGRAM.format(failing=FAILING[place]), timeout=100)
    assert done.returncode == 1, done
    assert "LookupError: the timeline broke" in done.stderr
    assert "still alive" not in done.stdout
