"""Rates under load and sizes of waiting packets, with planted faults and links set by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.impairments import Impairment, kind_of
from testbed.verdict import links_under_load
from testbed.verdict.link_changes import LinkChanges, Log
from testbed.verdict.links_under_load import Floats, LinksUnderLoad, of_link, spans_of_changes
from tests.verdict import evidence_of_gates
from tests.verdict.evidence_of_gates import gate_of

RATE_BPS = 100_000_000
PER_S = RATE_BPS / 8
QUEUE_BYTES = 150_000
FRAME = 1514
STEP_S = 0.0005
LIMITS: dict[str, Any] = {"rate_bps": RATE_BPS, "queue_bytes": QUEUE_BYTES}


def sampled(
    *,
    lasts_s=20.0,
    share=lambda t_s: 1.0,
    offered=lambda t_s: 1.2,
    queue_bytes=QUEUE_BYTES,
    late=lambda: 0.0,
    clump=1,
):
    """Samples of a queue that drains at a share of its rate: times and the three counters.

    Args:
        offered: what arrives, as a share of the configured rate.
        late: how much later than planned the next sample is.
        clump: frames in each packet that waits.
    """
    backlog = sent = 0.0
    rows = []
    next_s = 0.0
    for step in range(int(lasts_s / STEP_S)):
        t_s = step * STEP_S
        if t_s >= next_s:
            waiting = backlog - backlog % (clump * FRAME)
            rows.append((t_s, sent, waiting, waiting // (clump * FRAME)))
            next_s += 0.01 + late()
        backlog = min(queue_bytes, backlog + offered(t_s) * PER_S * STEP_S)
        leaving = min(backlog, share(t_s) * PER_S * STEP_S)
        backlog, sent = backlog - leaving, sent + leaving
    return [np.array(column) for column in zip(*rows, strict=True)]


def link(changed=(), **facts):
    limits = {**LIMITS, "queue_bytes": facts.get("queue_bytes", QUEUE_BYTES)}
    return of_link("server--s1", "s1", *sampled(**facts), **limits, changed=changed)


def gates(*links, failure=""):
    load = LinksUnderLoad(links=links, failure=failure)
    return {key: gate_of(key, load=load) for key in ("packet_bytes", "rate_under_load")}


def rate_gate(*links):
    return gates(*links)["rate_under_load"]


def test_half_a_second_at_another_rate_is_not_hidden_by_twenty_seconds():
    slow = link(share=lambda t_s: 0.5 if 10 <= t_s < 10.5 else 1.0)
    assert slow.delivered > 0.98
    assert slow.worst == pytest.approx(0.5, abs=0.02)
    fast = link(share=lambda t_s: 2.0 if 10 <= t_s < 10.5 else 1.0, offered=lambda _: 1.5)
    assert fast.most == pytest.approx(1.5, abs=0.15)  # what waited leaves too: its queue is empty
    assert rate_gate(slow).outcome == rate_gate(fast).outcome == "failed"


def paced(t_s):
    """Legs of 0.45 s, a little slower than the link."""
    return 0.97 if t_s % 0.5 < 0.45 else 0.0


@pytest.mark.parametrize(
    "facts",
    [
        {"offered": lambda _: 0.9},
        # Bunches of 60 kB come every 10 ms, just before a sample: each finds packets waiting.
        {"offered": lambda t_s: 9.6 if (t_s + STEP_S) % 0.01 < STEP_S else 0.0},
        {"offered": paced, "lasts_s": 3.5},
    ],
)
def test_a_link_that_is_not_loaded_is_not_applicable(facts):
    gate = rate_gate(link(**facts))
    assert gate.outcome == "not applicable"
    assert "0 of 1 directed links" in gate.note


def test_a_gap_in_the_samples_is_no_slow_link():
    gaps = iter([0.0] * 500 + [3.0] + [0.0] * 5000)
    load = link(late=lambda: next(gaps), offered=lambda t_s: 0.2 if 6 < t_s < 7.9 else 1.2)
    assert load.samples < 1900
    assert rate_gate(load).outcome == "passed"


@pytest.mark.parametrize(("share", "lasts_s"), [(0.0, 0.05), (0.0, 0.1), (0.0, 0.2), (0.5, 0.2)])
def test_a_link_that_stalls_once_under_paced_senders_is_found(share, lasts_s):
    stalled = link(
        lasts_s=3.5, offered=paced, share=lambda t_s: share if 1.1 <= t_s < 1.1 + lasts_s else 1.0
    )
    assert stalled.delivered is None  # a quarter of a second under load there was not
    gate = rate_gate(link(lasts_s=3.5, offered=paced), stalled)
    assert (gate.outcome, gate.where) == ("failed", "server--s1 from s1")
    # In half a second, but for the time in which the queue fills.
    assert 2 * ((1 - share) * lasts_s - 0.03) < gate.value < 2 * (1 - share) * lasts_s


def test_a_frame_that_has_not_yet_left_a_slow_link_is_no_stall():
    """At 1 Mbit/s a frame takes 12 ms, and five times in half a second one begins to wait."""
    t_s = np.arange(200, dtype=np.float64) * 0.01
    turn, since_s = np.divmod(np.arange(200), 10) * np.array([[1.0], [0.01]])
    frames = turn * 4 + np.floor(np.minimum(since_s, 0.06) / (8e-6 * FRAME))
    held = np.where(since_s < 0.055, 20.0 * FRAME, 0.0)
    sent: Floats = frames * FRAME
    load = of_link("a", "b", t_s, sent, held, held / FRAME, rate_bps=1_000_000, queue_bytes=150_000)
    assert load.missing < 0.03


def test_queues_that_are_too_small_to_tell_are_named():
    small = link(queue_bytes=100_000, share=lambda _: 0.9)
    gate = rate_gate(small, link())
    assert gate.outcome == "passed"
    assert gate.note.endswith("leaves between two samples: server--s1 from s1")
    gate = rate_gate(*[small] * 5)
    assert gate.outcome == "not applicable"
    assert gate.note.endswith("server--s1 from s1 and 2 more")


@settings(max_examples=15, deadline=None)
@given(
    error=st.floats(-0.2, 0.2).filter(lambda error: not 0.02 <= abs(error) <= 0.035),
    seed=st.integers(0, 1000),
    queue_bytes=st.integers(145_000, 1_000_000),
)
def test_any_error_is_found_and_none_is_invented(error, seed, queue_bytes):
    rng = np.random.default_rng(seed)
    load = link(
        lasts_s=3,
        share=lambda _: 1 + error,
        offered=lambda _: 1.5,
        queue_bytes=queue_bytes,
        late=lambda: float(rng.exponential(0.0005)),
    )
    assert load.delivered == pytest.approx(1 + error, abs=0.01)
    gate = rate_gate(load, link(lasts_s=1))
    assert gate.outcome == ("failed" if abs(error) > 0.03 else "passed")
    assert gate.outcome == "passed" or gate.where == "server--s1 from s1"


@pytest.mark.parametrize("key", ["delivered", "worst", "most"])
def test_a_rate_that_is_no_number_does_not_hide(key):
    gate = rate_gate(link(), replace(link(), **{key: float("nan")}), link())
    assert (gate.outcome, gate.where) == ("not measured", "server--s1 from s1")
    assert "is nan" in gate.note


def event(action, at_s, kind="queue", target="server", name="slow"):
    entry = Impairment if kind.endswith(".py") else kind_of(kind)
    return {
        "kind": kind,
        "changes_rates": entry.changes_rates,
        "name": name,
        "target": target,
        "action": action,
        "sent_s": at_s,
        "acknowledged_s": at_s + 0.001,
    }


@pytest.mark.parametrize(
    ("kind", "target", "hit"),
    [
        ("queue", "server", True),
        ("queue", "s1->server", True),
        ("queue", "worker-1", False),
        ("straggler", "server", True),
        ("link-down", "s1->s2", False),
        *((kind, "server", False) for kind in ("loss", "burst", "background")),
        ("crash", "server", False),
        ("./mine.py", "worker-1", True),  # nobody knows what it changes
    ],
)
def test_which_impairments_may_change_the_rate_of_a_link(kind, target, hit):
    events = [event("begin", 5.0, kind, target), event("end", 8.0, kind, target)]
    assert spans_of_changes(events, {"server", "s1"}) == ([(5.0, 8.001)] if hit else [])
    # One that never ends lasts for ever.
    events = [event("begin", 7.0, kind, target)]
    assert spans_of_changes(events, {"server", "s1"}) == ([(7.0, float("inf"))] if hit else [])


@pytest.mark.parametrize("clump", [2, 10, 43])
def test_clumps_fail_and_their_queue_is_named(clump):
    gate = gates(link(clump=clump, lasts_s=2))["packet_bytes"]
    assert gate.outcome == "failed"
    assert gate.where == "server--s1 from s1"
    # Two of 65 kB fill this queue; one frame of what waits is allowed to have come between reads.
    assert gate.value == pytest.approx(clump * FRAME, rel=0.3)


def counters(*pairs):
    """Samples with these bytes and packets waiting."""
    held, packets = np.array(pairs, dtype=np.float64).T
    t_s = np.linspace(0.0, 0.01 * len(pairs), len(pairs))
    return of_link("server--s1", "s1", t_s, np.zeros(len(pairs)), held, packets, **LIMITS)


def test_single_packets_pass_and_their_number_is_told():
    gate = gates(link(lasts_s=1))["packet_bytes"]
    assert (gate.outcome, gate.value) == ("passed", FRAME)
    assert gate.note == "99 of 100 samples found packets waiting"
    gate = gates(counters((0, 0), (0, 0)))["packet_bytes"]
    assert gate.outcome == "not applicable"
    assert gate.note == "none of 2 samples found a packet waiting"


def test_a_packet_between_two_reads_is_no_clump_and_a_single_sample_proves_nothing():
    torn = counters((10 * FRAME, 9), (3 * FRAME, 2), (FRAME, 0), (9 * FRAME, 10), (2 * FRAME, 1))
    assert torn.packet_bytes == FRAME
    lone = [(FRAME, 1), (65_000, 1), (2 * FRAME, 2)]
    assert counters(*lone).packet_bytes == FRAME
    assert counters(*lone, (65_000, 1)).packet_bytes > 60_000


def stored(directory: Path, columns) -> Path:
    samples = directory / "samples"
    samples.mkdir()
    names = ("t_s", "sent_bytes", "backlog_bytes", "backlog_packets")
    table = dict(zip(names, columns, strict=True))
    count = len(columns[0])
    pl.DataFrame({"link": ["server--s1"] * count, "from": ["s1"] * count, **table}).write_parquet(
        samples / "queues.parquet"
    )
    described = [{"link": "server--s1", "from": end, **LIMITS} for end in ("s1", "server")]
    (samples / "sampler.json").write_text(json.dumps({"directed_links": described}))
    return directory


@pytest.mark.parametrize("missing", ["queues.parquet", "sampler.json", "whole table"])
def test_without_samples_nothing_was_measured(tmp_path: Path, missing: str):
    samples = stored(tmp_path, sampled(lasts_s=1)) / "samples"
    if missing == "whole table":
        (samples / "queues.parquet").write_bytes(b"PAR1 but no more")
    else:
        (samples / missing).unlink()
    load = links_under_load.measure(tmp_path, [], LinkChanges())
    empty = of_link("server--s1", "s1", *(np.zeros(0) for _ in range(4)), **LIMITS)
    for judged in (gates(failure=load.failure), gates(empty)):
        assert {gate.outcome for gate in judged.values()} == {"not measured"}
    assert "no samples of queues" in load.failure


def test_a_replayed_rate_is_judged_by_what_was_in_force():
    """Half the rate from 2 s to 4 s, and a tenth until 5 s."""

    def share(t_s):
        return 1.0 if t_s < 2 or t_s >= 5 else 0.5 if t_s < 4 else 0.1

    rate_bps = LIMITS["rate_bps"]
    changes = [(0.0, rate_bps), (2.0, rate_bps / 2), (4.0, rate_bps / 10), (5.0, rate_bps)]

    def judged(replayed, share=share):
        columns = sampled(share=share, offered=lambda _: 2.0, lasts_s=6.0)
        return of_link("server--s1", "s1", *columns, **LIMITS, replayed=replayed)

    right = judged(changes)
    assert right.error < 0.01
    assert right.loaded_s > 5
    assert right.left_out_s == 0
    assert judged(()).error > 0.3
    # The rate of a stretch that was not set.
    assert judged(changes, lambda t_s: 1.0 if 2 <= t_s < 4 else share(t_s)).error > 0.3
    assert judged(changes, lambda t_s: 0.4 if 2 <= t_s < 4 else share(t_s)).error > 0.15


def test_a_rate_that_was_set_by_hand_is_judged_and_excuses_no_other_direction(tmp_path: Path):
    """From 5 s on one direction has half its rate."""

    def by_hand(sender):
        change = {"link": "server--s1", "from": sender, "set": ["rate_bps"], "sent_s": 5.0}
        return LinkChanges([change | {"acknowledged_s": 5.02, "rate_bps": RATE_BPS // 2}])

    facts = sampled(share=lambda t_s: 0.5 if t_s >= 5 else 1.0, offered=lambda _: 2.0)
    stored(tmp_path, facts)
    set_here = links_under_load.measure(tmp_path, [], by_hand("s1")).links[0]
    assert set_here.error < 0.01
    assert set_here.loaded_s > 19.5
    assert 0 < set_here.left_out_s < 0.06
    set_there = links_under_load.measure(tmp_path, [], by_hand("server")).links[0]
    assert set_there.error == pytest.approx(0.5, abs=0.01)


A = replace(evidence_of_gates.LINK.first, node="a")
LINK = replace(evidence_of_gates.LINK, name="a--s1", first=A, rate_bps=10_000_000)
NETWORK = evidence_of_gates.network_of(LINK)


def changes(folder, *made: tuple[list[str], dict[str, Any]]) -> LinkChanges:
    """It reads changes by hand from `a`: the keys that were set, and others than before."""
    (folder / "events").mkdir()
    log = Log(folder, NETWORK)
    for at_s, (keys, now) in enumerate(made):
        all_now = {"rate_bps": 10_000_000, "queue_bytes": 150_000, "loss": 0.0}
        all_now |= {"delay_s": 0.0, "jitter_s": 0.0, **now}
        log.add("a", "s1", keys, {"now": all_now, "sent_s": at_s, "acknowledged_s": at_s})
    return LinkChanges.read(folder)


def test_what_an_impairment_had_set_meanwhile_is_not_by_hand(tmp_path):
    by_hand = changes(
        tmp_path, (["queue_bytes"], {"queue_bytes": 9000, "rate_bps": 1, "loss": 0.5})
    )
    shape = by_hand.shape(LINK, "a")
    assert (shape.rate_bps, shape.queue_bytes) == (10_000_000, 9000)
    assert by_hand.shape(LINK, "s1") == LINK.shape
    assert by_hand.rates(("a--s1", "a")) == []
    assert by_hand.of(NETWORK, "loss") == {}


def test_each_setting_is_as_it_was_set_last(tmp_path):
    by_hand = changes(
        tmp_path,
        (["rate_bps"], {"rate_bps": 2_000_000}),
        (["queue_bytes", "loss"], {"rate_bps": 500_000, "queue_bytes": 9000, "loss": 0.1}),
        (["rate_bps"], {"queue_bytes": 9000}),
    )
    shape = by_hand.shape(LINK, "a")
    assert (shape.rate_bps, shape.queue_bytes) == (10_000_000, 9000)
    assert by_hand.rates(("a--s1", "a")) == [(0, 0, 2_000_000), (2, 2, 10_000_000)]
    assert by_hand.rates(("a--s1", "s1")) == []
    assert by_hand.of(NETWORK, "loss") == {("a--s1", "a"): {"loss": 0.1}}


def test_the_longest_way_is_that_of_any_change(tmp_path):
    slow = {"delay_s": 2.0, "jitter_s": 0.5}
    assert changes(tmp_path, (["delay_s"], slow), (["delay_s"], {})).longest_s == 2.5
    assert LinkChanges().longest_s == 0
