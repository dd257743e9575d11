"""Packets vanish and nothing counts them."""

from __future__ import annotations

import json

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


def port_to(lab: RunningLab, host: str) -> str:
    """The switch's interface that a host's link leads to."""
    described = lab.run_in(lab.host(host), "ip", "-j", "link", "show", f"{host}-eth0")
    [own] = json.loads(described)
    others = json.loads(lab.run_in(lab.switches(), "ip", "-j", "link", "show"))
    return next(each["ifname"] for each in others if each["ifindex"] == own["link_index"])


@pytest.mark.long
def test_a_link_that_goes_down_hides_no_leak_elsewhere(wrong_lab: WrongLab):
    topology = {"name": "leaf-spine", "workers": 2, "spines": 2, "queue_bytes": 150_000}
    down = {"kind": "link-down", "link": ["leaf-2", "spine-1"], "leg": "gather"}
    results = wrong_lab.run(
        meanwhile=lambda lab: leak(lab, lab.switches(), "egress", port_to(lab, "server")),
        topology=topology | {"rate_bps": wrong_lab.rate_bps},
        impairments=[down | {"rounds": [12, 20], "duration_s": 0.05}],
    )
    gate = assert_invalid(results, "conservation", where="server--leaf-1 from leaf-1")
    assert gate["value"] > gate["limit"]
