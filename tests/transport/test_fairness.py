"""Ours leave its share to a CUBIC flow on the same link, in virtual time."""

import pytest

from tests.transport.beside_cubic import share


@pytest.mark.long
@pytest.mark.parametrize(
    ("control", "repair", "least", "most"),
    [
        ("rival", "", 0.45, 0.55),
        ("cubic", "streaming", 0.43, 0.57),
        ("reno", "streaming", 0.43, 0.57),
        ("bbr", "streaming", 0.2, 0.6),
    ],
)
def test_beside_a_flow_of_cubic_each_gets_its_share(control, repair, least, most):
    assert least <= share(control, repair) <= most
