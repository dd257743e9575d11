"""A peer that means harm, and what its datagrams and messages do to a connection: nothing."""

import pytest

from tests.fuzz.connections import attack


@pytest.mark.parametrize(
    "share", [0.003, pytest.param(0.1, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_nothing_that_is_built_by_structure_ends_or_fills_a_connection(share):
    """A share of what `python -m tests.fuzz.connections` sends."""
    datagrams, messages = int(share * 1e7), int(share * 1e6)
    done = attack(datagrams, messages, seed=1)
    assert done["datagrams"] >= datagrams
    assert done["messages"] >= messages
