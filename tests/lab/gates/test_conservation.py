"""Packets vanish and nothing counts them."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab


def leak(lab: RunningLab, pid: int, hook: str, interface: str, one_in: int = 100) -> None:
    """Drop one in so many large packets at an interface, without a counter."""
    rules = (
        "add table netdev leak; add chain netdev leak hole "
        f'{{ type filter hook {hook} device "{interface}" priority 5; }}; '
        f"add rule netdev leak hole meta length > 500 numgen inc mod {one_in} 0 drop"
    )
    lab.run_in(pid, "nft", rules)


@pytest.mark.parametrize(
    ("hook", "one_in"), [("ingress", 2000), pytest.param("egress", 100, marks=pytest.mark.long)]
)
def test_a_leak_that_nobody_counts_is_found_and_its_link_named(
    wrong_lab: WrongLab, hook: str, one_in: int
):
    def make_a_hole(lab: RunningLab) -> None:
        # Where they arrive at the server, or in front of the queue of the switch port that leads
        # to it.
        pid, interface = {
            "ingress": (lab.host("server"), "server-eth0"),
            "egress": (lab.switches(), "s1-eth1"),
        }[hook]
        leak(lab, pid, hook, interface, one_in)

    results = wrong_lab.run(meanwhile=make_a_hole)
    gate = assert_invalid(results, "conservation", where="server--s1 from s1")
    assert gate["value"] > gate["limit"]
