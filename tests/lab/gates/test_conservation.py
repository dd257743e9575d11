"""Packets vanish and nothing counts them."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab


def test_a_leak_that_nobody_counts_is_found_and_its_link_named(wrong_lab: WrongLab):
    rules = (
        "add table netdev leak; add chain netdev leak hole "
        '{ type filter hook ingress device "server-eth0" priority 5; }; '
        "add rule netdev leak hole meta length > 500 numgen inc mod 2000 0 drop"
    )
    results = wrong_lab.run(meanwhile=lambda lab: lab.run_in(lab.host("server"), "nft", rules))
    gate = assert_invalid(results, "conservation", where="server--s1 from s1")
    assert gate["value"] > gate["limit"]
