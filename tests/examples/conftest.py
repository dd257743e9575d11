"""What a test has loaded of a user's own code is not expected by the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.shared import own_code


@pytest.fixture(autouse=True)
def _expect_nothing_afterwards() -> Iterator[None]:
    yield
    own_code.expect({})
