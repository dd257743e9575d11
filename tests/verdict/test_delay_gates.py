"""The gates of delayed links, on records of runs that went well and of such that did not."""

import json
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from testbed.lab.network import LinkEnds
from testbed.verdict.link_changes import LinkChanges, Way
from tests.verdict import evidence_of_gates
from tests.verdict.evidence_of_gates import gate_of, network_of

LINK = replace(evidence_of_gates.LINK, delay_s=0.005, middle=("mid0a", "mid0b"))
STRETCH = {"link": "server--s1", "from": "s1", "at_s": 1.0, "frames": 8000}
STRETCH |= {"late_p99_s": 0.0003, "late_max_s": 0.0012}
WAITS = {"wait_least_s": 0.005, "wait_most_s": 0.0052}
WAITS |= {"left_out": 0}


def direction(sender: str = "s1", **changes: Any) -> dict[str, Any]:
    settings = {"delay_s": 0.005, "jitter_s": 0.0, "loss": 0.0}
    return {"link": "server--s1", "from": sender, **settings, **WAITS, **changes}


def passed(sender: str, frames: int = 90_000) -> dict[str, Any]:
    return {"link": "server--s1", "from": sender, "frames_in": frames}


def record(**changes: Any) -> dict[str, Any]:
    return {
        "by": "relay",
        "in_order": True,
        "scheduling": "fifo",
        "worst": STRETCH,
        "late_max_s": 0.0012,
        "early_max_s": 0.00005,
        "delays": [direction("server"), direction("s1")],
        "at_s": 9.0,
        "directions": [passed("server"), passed("s1")],
    } | changes


def by_hand(changed: dict[Way, dict[str, float]]) -> LinkChanges:
    before = {"delay_s": 0.005, "jitter_s": 0.0, "sent_s": 1.9, "acknowledged_s": 2.0}
    ways = [(way, {**before, **now}) for way, now in changed.items()]
    return LinkChanges(
        [{"link": way[0], "from": way[1], "set": [*changed[way]], **now} for way, now in ways]
    )


def judged(tmp_path, delays: dict[str, Any] | None = None, *, link: LinkEnds = LINK, changed=None):
    by = None if link.middle is None else (delays or {"by": "relay"})["by"]
    if delays is not None:
        (tmp_path / "delay.json").write_text(json.dumps(delays))
    network = network_of(link, delayed_by=by)
    seen = {"directory": tmp_path, "network": network, "changes": by_hand(changed or {})}
    keys = "relay_late_s", "relay_late_max_s", "delay_error_s"
    return {gate.key: gate for gate in (gate_of(key, **seen) for key in keys)}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"worst": STRETCH | {"late_p99_s": 0.0031}}, "relay_late_s"),
        ({"late_max_s": 0.03}, "relay_late_max_s"),
        ({"early_max_s": 0.021}, "relay_late_max_s"),
        ({"delays": [direction("server"), direction(wait_most_s=0.0056)]}, "delay_error_s"),
        ({"delays": [direction("server"), direction(wait_least_s=0.0044)]}, "delay_error_s"),
        ({"delays": [direction("server"), direction(wait_most_s=float("nan"))]}, "delay_error_s"),
        ({"delays": [direction("server"), direction(delay_s=0.006)]}, "delay_error_s"),
        ({"delays": [direction("server"), direction(jitter_s=0.001)]}, "delay_error_s"),
    ],
)
def test_what_was_late_early_or_changed_stops_the_run(tmp_path, changes, key):
    gates = judged(tmp_path, record(**changes))
    assert [gate.key for gate in gates.values() if gate.stops] == [key]
    if key != "relay_late_max_s":
        assert gates[key].where == "server--s1 from s1"


@pytest.mark.parametrize(
    ("settings", "key", "longest_s"),
    [
        ({"delay_s": 0.1}, "delay_error", 0.11),  # a share of a long delay
        ({"delay_s": 0.005, "jitter_s": 0.002}, "delay_error_s", 0.0075),  # of a dense flow
    ],
)
def test_a_delay_may_be_off_by_a_share_and_by_its_jitter(tmp_path, settings, key, longest_s):
    link = replace(LINK, **settings)
    near = {**settings, "wait_least_s": settings["delay_s"]}
    for wait_s, outcome in ((longest_s - 1e-4, "passed"), (longest_s + 1e-4, "failed")):
        delays = [direction(**near, wait_most_s=wait_s)]
        assert judged(tmp_path, record(delays=delays), link=link)[key].outcome == outcome


@pytest.mark.parametrize(
    ("changes", "value_s"),
    [
        ({}, 0.0),
        ({"wait_least_s": 0.0038}, 0.0),  # 20 frames may have drawn little
        # Nothing but chance makes frames wait less.
        ({"wait_least_s": 0.003}, 0.002 - 0.00127),
        ({"jitter_s": 0.0}, 0.002),
    ],
)
def test_a_jitter_hides_no_delay_and_is_compared_itself(tmp_path, changes, value_s):
    seen = direction(jitter_s=0.002) | changes
    jittery = replace(LINK, jitter_s=0.002)
    gate = judged(tmp_path, record(delays=[seen]), link=jittery)["delay_error_s"]
    assert gate.value == pytest.approx(value_s, abs=1e-5)
    assert gate.stops is (value_s > 0)


def test_of_netem_only_the_settings_are_known_and_the_gates_say_so(tmp_path):
    unknown: dict[str, Any] = dict.fromkeys(WAITS)
    netem = record(by="netem", in_order=False, delays=[direction(**unknown)])
    gates = judged(tmp_path, netem)
    assert gates["relay_late_s"].outcome == gates["relay_late_max_s"].outcome == "not applicable"
    assert "frames may overtake each other (in_order is false)" in gates["relay_late_s"].note
    assert gates["delay_error_s"].outcome == "passed"
    assert "netem was set to in the end" in gates["delay_error_s"].note
    assert "overtake" not in judged(tmp_path, netem | {"in_order": True})["relay_late_s"].note
    changed = netem | {"delays": [direction(**unknown, delay_s=0.006)]}
    assert judged(tmp_path, changed)["delay_error_s"].outcome == "failed"


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({}, ["of 8000 frames; scheduled as fifo"]),
        (
            {"wait_least_s": None, "wait_most_s": None},
            ["1 of 2 directions carried too few frames to tell"],
        ),
        ({"left_out": 700}, ["700 frames left out, which left while impairments changed delays"]),
    ],
)
def test_a_punctual_relay_passes_and_frames_that_were_not_compared_are_told(
    tmp_path, changes, notes
):
    gates = judged(tmp_path, record(delays=[direction("server"), direction(**changes)]))
    assert [(key, gate.outcome, gate.value) for key, gate in gates.items()] == [
        ("relay_late_s", "passed", 0.0003),
        ("relay_late_max_s", "passed", 0.0012),
        ("delay_error_s", "passed", pytest.approx(0.0002)),
    ]
    assert gates["relay_late_s"].where == "server--s1 from s1"
    assert gates["delay_error_s" if changes else "relay_late_s"].note == notes[0]


def test_no_frames_or_no_record_do_not_pass_and_without_delayed_links_no_gate_applies(tmp_path):
    silent = judged(tmp_path, record(worst=None))
    assert silent["relay_late_s"].outcome == silent["relay_late_max_s"].outcome == "not measured"
    (tmp_path / "delay.json").unlink()
    for gate in judged(tmp_path).values():
        assert gate.outcome == "not measured"
        assert gate.note.startswith("delay.json cannot be read")
    gates = judged(tmp_path, link=replace(LINK, middle=None)).values()
    assert [gate.outcome for gate in gates] == ["not applicable"] * 3


def test_a_relay_of_links_at_rest_need_not_carry_a_frame(tmp_path):
    idle = record(worst=None, delays=[direction(delay_s=0.0, wait_least_s=None, wait_most_s=None)])
    gates = judged(tmp_path, idle, link=replace(LINK, delay_s=0.0))
    assert gates["relay_late_s"].outcome == gates["relay_late_max_s"].outcome == "not applicable"
    assert gates["delay_error_s"].outcome == "passed"


def test_a_delay_that_was_set_by_hand_is_compared_with_what_was_set_last(tmp_path):
    """One direction was set from 5 to 20 ms: its frames waited for either."""
    slow = direction("s1", delay_s=0.02, wait_least_s=0.005, wait_most_s=0.02)
    recorded = record(delays=[direction("server"), slow])
    to_20_ms = {("server--s1", "s1"): {"delay_s": 0.02}}
    assert judged(tmp_path, recorded)["delay_error_s"].outcome == "failed"
    gate = judged(tmp_path, recorded, changed=to_20_ms)["delay_error_s"]
    assert gate.outcome == "passed"
    assert gate.note == "set by hand, so waits are not compared: server--s1 from s1"
    other = {("server--s1", "server"): {"delay_s": 0.005}}
    assert judged(tmp_path, recorded, changed=other)["delay_error_s"].outcome == "failed"
    # What was set did not stay.
    recorded = record(delays=[direction("server"), direction("s1")])
    gate = judged(tmp_path, recorded, changed=to_20_ms)["delay_error"]
    assert (gate.outcome, gate.where) == ("failed", "server--s1 from s1")
    assert gate.value == pytest.approx(0.015)


@pytest.mark.parametrize("key", ["delay_s", "jitter_s", "loss"])
def test_frames_that_pass_by_what_was_set_by_hand_stop_the_run(tmp_path, key):
    """The link was idle until one direction was set; all its frames still took the old way."""
    link = replace(LINK, delay_s=0.0)
    changed = {("server--s1", "s1"): {"delay_s": 0.0, key: 0.02}}
    there = direction(delay_s=0.0, wait_least_s=None, wait_most_s=None) | {key: 0.02}
    unseen = record(delays=[there], directions=[passed("s1", 0), passed("server", 0)])
    (tmp_path / "samples").mkdir()
    rows = [
        {"t_s": at_s, "link": "server--s1", "from": sender, "sent_packets": sent}
        for at_s, sent in ((1.0, 3), (2.5, 10), (3.5, 17), (8.95, 40))  # the last are on their way
        for sender in ("server", "s1")
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "samples" / "queues.parquet")
    *_, gate = judged(tmp_path, unseen, link=link, changed=changed).values()
    assert gate.outcome == "not measured"
    assert "server--s1 from s1 was set by hand, its queue sent 7 packets afterwards" in gate.note
    seen = unseen | {"directions": [passed("s1", 1), passed("server", 0)]}
    *_, gate = judged(tmp_path, seen, link=link, changed=changed).values()
    assert gate.outcome == "passed"
