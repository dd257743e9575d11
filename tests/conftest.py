"""Order of the tests: what takes seconds first, real labs last. No test fails for being slow."""

from __future__ import annotations

import hypothesis
import pytest

# A busy machine may take any time for an example.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("lab") is not None)
