"""What the settings of connections refuse."""

import math

import pytest

from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.policies.order import InOrder
from testbed.transport.policies.repair import Passes
from tests.transport.virtual import layout_of


def settings(**changed):
    return ConnectionSettings(
        **{"session": 1, "layout": layout_of(1), "repair": Passes(), "order": InOrder(), **changed}
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("session", value) for value in (-1, 2**32)),
        *(("peer_timeout_s", value) for value in (0, -1.0, math.inf, math.nan)),
        *(("transfers_in_flight", value) for value in (0, -1)),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("session", 0), ("session", 2**32 - 1), ("peer_timeout_s", 1e-3), ("transfers_in_flight", 1)],
)
def test_the_ends_of_each_range_are_taken(name, value):
    assert getattr(settings(**{name: value}), name) == value
