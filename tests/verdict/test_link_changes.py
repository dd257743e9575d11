"""What was set by hand is told apart from what an impairment had set at that time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from testbed.verdict.link_changes import LinkChanges, Log
from tests.verdict import evidence_of_gates

A = replace(evidence_of_gates.LINK.first, node="a")
LINK = replace(evidence_of_gates.LINK, name="a--s1", first=A, rate_bps=10_000_000)
NETWORK = evidence_of_gates.network_of(LINK)


def changes(folder, *made: tuple[list[str], dict[str, Any]]) -> LinkChanges:
    """What is read of changes by hand from `a`: the keys that were set, and others than before."""
    (folder / "events").mkdir()
    log = Log(folder, NETWORK)
    for at_s, (keys, now) in enumerate(made):
        all_now = {"rate_bps": 10_000_000, "queue_bytes": 150_000, "loss": 0.0}
        all_now |= {"delay_s": 0.0, "jitter_s": 0.0, **now}
        log.add("a", "s1", keys, {"now": all_now, "sent_s": at_s, "acknowledged_s": at_s})
    return LinkChanges.read(folder)


def test_what_an_impairment_had_set_meanwhile_is_not_by_hand(tmp_path):
    found = changes(tmp_path, (["queue_bytes"], {"queue_bytes": 9000, "rate_bps": 1, "loss": 0.5}))
    shape = found.shape(LINK, "a")
    assert (shape.rate_bps, shape.queue_bytes) == (10_000_000, 9000)
    assert found.shape(LINK, "s1") == LINK.shape
    assert found.rates(("a--s1", "a")) == []
    assert found.of(NETWORK, "loss") == {}


def test_each_setting_is_as_it_was_set_last(tmp_path):
    found = changes(
        tmp_path,
        (["rate_bps"], {"rate_bps": 2_000_000}),
        (["queue_bytes", "loss"], {"rate_bps": 500_000, "queue_bytes": 9000, "loss": 0.1}),
        (["rate_bps"], {"queue_bytes": 9000}),
    )
    shape = found.shape(LINK, "a")
    assert (shape.rate_bps, shape.queue_bytes) == (10_000_000, 9000)
    assert found.rates(("a--s1", "a")) == [(0, 0, 2_000_000), (2, 2, 10_000_000)]
    assert found.rates(("a--s1", "s1")) == []
    assert found.of(NETWORK, "loss") == {("a--s1", "a"): {"loss": 0.1}}


def test_the_longest_way_is_that_of_any_change(tmp_path):
    slow = {"delay_s": 2.0, "jitter_s": 0.5}
    assert changes(tmp_path, (["delay_s"], slow), (["delay_s"], {})).longest_s == 2.5
    assert LinkChanges().longest_s == 0
