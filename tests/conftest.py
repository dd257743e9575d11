"""Order of the tests: what takes seconds first, real labs last. No test fails for being slow.

A lab test measures a real network in real time, on a machine whose processors others may take away
for a moment. It is tried again when it fails, at most twice, and the closing summary names each
such test (RERUN): one that is named there again and again has a fault. Nothing else is tried twice.
"""

from __future__ import annotations

import hypothesis
import pytest

# A busy machine may take any time for an example.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked long, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long") is not None]
        config.hook.pytest_deselected(items=left_out)  # the closing line counts them
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.get_closest_marker("lab") is not None)
    for item in items:
        if item.get_closest_marker("lab") is None or item.get_closest_marker("flaky") is not None:
            continue
        item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2))
