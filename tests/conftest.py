"""Order of the tests: what takes seconds first, real labs last. No test fails for being slow.

A lab test measures a real network in real time. One that fails is tried a second time only if
the machine is disturbed at that moment: others take its processors, or its timers are late. Each of
them is named in the closing summary with what disturbed the machine. On a machine that is not, a
failure is a failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from testbed.machine import steadiness

# A busy machine may take any time for an example.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

_LABS = Path(__file__).parent / "lab"
MACHINE = pytest.StashKey[str]()  # what the probe found, in words; filled by the first lab test
_tried_again: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked long, too")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _LABS in item.path.parents:
            item.add_marker(pytest.mark.lab)
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long") is not None]
        config.hook.pytest_deselected(items=left_out)  # the closing line counts them
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.get_closest_marker("lab") is not None)
    for item in items:
        if item.get_closest_marker("lab") is None or item.get_closest_marker("flaky") is not None:
            continue
        once_more = pytest.mark.flaky(reruns=1, reruns_delay=2, condition=_disturbed_at(item))
        item.add_marker(once_more)


@pytest.fixture(autouse=True)
def _same_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user's file brings to Python's search path is gone after the test, as after a call."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def _disturbed_at(item: pytest.Item) -> Callable[[BaseException | None], bool]:
    """What pytest-rerunfailures asks after each try, with what went wrong in it."""

    def disturbed(error: BaseException | None) -> bool:
        if error is None or item.nodeid in _tried_again:
            return False
        if why := steadiness.watch().disturbed:
            _tried_again[item.nodeid] = why
        return bool(why)

    return disturbed


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if MACHINE in config.stash:
        terminalreporter.write_line(f"this machine: {config.stash[MACHINE]}")
    if _tried_again:
        terminalreporter.write_line(f"tried a second time while disturbed: {len(_tried_again)}")
    for test, why in _tried_again.items():
        terminalreporter.write_line(f"  {test}: {why}")
