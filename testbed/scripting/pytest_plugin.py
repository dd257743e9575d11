"""Fixtures for tests that use a lab: `pytest_plugins = ["testbed.scripting.pytest_plugin"]`.

Write that line into the `conftest.py` beside your tests, and a fixture of your own that opens the
lab they share, as `docs/how-to/lab-in-python.md` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from testbed.scripting.lab import Lab


@pytest.fixture(scope="module")
def open_lab() -> Iterator[Callable[..., Lab]]:
    """Opens labs that end with the module's last test.

    `open_lab("quick")` is `Lab.from_experiment("quick")`; with a `Topo` or a mapping it is
    `Lab.from_topology`. Further arguments are passed on.
    """
    with ExitStack() as labs:

        def opened(what: Any, **options: Any) -> Lab:
            is_name = isinstance(what, str) or not (
                isinstance(what, Mapping) or hasattr(what, "addLink") or hasattr(what, "host_names")
            )
            make = Lab.from_experiment if is_name else Lab.from_topology
            return labs.enter_context(make(what, **options))

        yield opened
