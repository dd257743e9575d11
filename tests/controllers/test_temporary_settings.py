"""After an impairment a link has what it had before, or what was set by hand meanwhile."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from controllers.impairments import make
from controllers.impairments.link import TemporarySettings
from testbed.lab.kernel.rtnetlink import Interface
from testbed.lab.link_control import LinkControl

CONFIGURED_BPS, BY_HAND_BPS = 10_000_000, 2_000_000
TARGET = {"link": ["s1", "a"], "at_s": [0], "duration_s": 9}


class Links(LinkControl):
    """The real ones, whose messages to the kernel go nowhere."""

    def _kernel(self, pid: int | None) -> Any:
        return SimpleNamespace(
            interface=lambda name: Interface(1, name), send=lambda messages: None
        )

    def offered(self, first: str, second: str) -> tuple[int, int]:
        return 0, 0


@pytest.fixture
def lab(tmp_path):
    ends = {
        end: {"node": node, "interface": f"{node}-eth", "number": 1, "pid": None}
        for end, node in (("first", "a"), ("second", "s1"))
    }
    shape = {"rate_bps": CONFIGURED_BPS, "queue_bytes": 150_000, "ecn_threshold_bytes": None}
    way = {"delay_s": 0.0, "jitter_s": 0.0, "loss": 0.0, "middle": None}
    link = {"name": "a--s1", **ends, **shape, **way}
    network = {"links": [link], "switches": {"s1": 1}, "hosts": {"a": {}}}
    return SimpleNamespace(
        network=network, links=Links(network), records=tmp_path, now_s=time.monotonic
    )


QUEUE = {"kind": "queue", "rate_bps": CONFIGURED_BPS // 10, "queue_bytes": 75_000, **TARGET}
STRAGGLER = {"kind": "straggler", "host": "a", "resource": "link", "factor": 4, "rounds": [1]}
CHANGES = {"t_s": [0, 1], "rate_bps": [1e6, 3e6]}
TRACE = {"kind": "trace", "changes": CHANGES, "length_s": 2, **TARGET}
ALL = pytest.mark.parametrize("entry", [QUEUE, STRAGGLER, TRACE], ids=lambda entry: entry["kind"])


@ALL
def test_what_was_set_by_hand_before_is_back_after_each_occurrence(lab, entry):
    impairment = make(entry, lab)
    for by_hand in ({"rate_bps": BY_HAND_BPS, "queue_bytes": 90_000}, {"rate_bps": 7_000_000}):
        lab.links.change("s1", "a", by_hand)
        before = lab.links.now("s1", "a")
        impairment.begin()
        assert lab.links.now("s1", "a")["rate_bps"] not in (CONFIGURED_BPS, before["rate_bps"])
        impairment.end()
        assert lab.links.now("s1", "a") == before
    assert lab.links.now("a", "s1")["rate_bps"] == CONFIGURED_BPS


@ALL
def test_what_is_set_by_hand_meanwhile_holds_and_stays_the_rest_is_brought_back(lab, entry):
    impairment = make(entry, lab)
    impairment.begin()
    lab.links.change("s1", "a", {"rate_bps": BY_HAND_BPS})
    assert lab.links.now("s1", "a")["rate_bps"] == BY_HAND_BPS
    impairment.end()
    shape = lab.links.now("s1", "a")
    assert (shape["rate_bps"], shape["queue_bytes"]) == (BY_HAND_BPS, 150_000)


def test_a_later_change_of_the_impairment_does_not_lose_what_was_set_by_hand(lab):
    link = TemporarySettings(lab.links, "s1", "a")
    for rate_bps in (1_000_000, 3_000_000):
        link.set({"rate_bps": rate_bps})
    lab.links.change("s1", "a", {"rate_bps": BY_HAND_BPS})
    for rate_bps in (1_000_000, 1_000_000):
        link.set({"rate_bps": rate_bps})
        assert lab.links.now("s1", "a")["rate_bps"] == rate_bps
    link.undo()
    assert lab.links.now("s1", "a")["rate_bps"] == BY_HAND_BPS


def test_a_straggler_is_slower_than_what_is_in_force(lab):
    lab.links.change("s1", "a", {"rate_bps": BY_HAND_BPS})
    impairment = make(STRAGGLER, lab)
    assert impairment.changes_rates == "target"
    impairment.begin()
    assert lab.links.now("s1", "a")["rate_bps"] == BY_HAND_BPS / 4
    assert lab.links.now("a", "s1")["rate_bps"] == CONFIGURED_BPS / 4
    impairment.end()
    assert impairment.effect().details["rate_bps"] == BY_HAND_BPS / 4
