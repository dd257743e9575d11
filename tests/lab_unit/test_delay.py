"""Settings of the middle of a link, and the relay's lateness."""

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from testbed.lab.delay import DelaySettings, Middle, netem
from testbed.lab.delay.relay import Punctuality
from testbed.lab.delay.relayed_direction import generators, jitter_ns, kept
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.shaping import LinkShape


def middle(rate_bps: int | None = 100_000_000, **settings: float) -> Middle:
    return Middle(
        link="a--b",
        nodes=("a", "b"),
        interfaces=("x", "y"),
        rate_bps=rate_bps,
        settings=DelaySettings(**settings),
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delay_s": -0.001}, r"delay_s -0.001; valid: 0 to 10"),
        ({"delay_s": float("nan")}, r"delay_s nan; valid"),
        ({"jitter_s": 11}, r"jitter_s 11; valid: 0 to 10"),
        ({"loss": 1.5}, r"loss 1.5; valid: 0 to 1"),
        (
            {"delay_s": 0.001, "jitter_s": 0.002},
            r"jitter_s is 0.002 s, more than the 0.001 s .* to 0.001 s",
        ),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DelaySettings(**settings)


@pytest.mark.parametrize("rate_bps", [1_000_000, 100_000_000, 1_000_000_000])
@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.005, 0.1])
def test_the_relay_s_memory_holds_the_smallest_frames_at_full_rate(rate_bps, delay_s):
    made = middle(rate_bps, delay_s=delay_s)
    assert made.slots % 32 == 0
    frames_per_s = min(rate_bps / (60 * 8), 250_000)
    # And 20 ms of full-size frames that a relay is late.
    assert made.slots >= frames_per_s * delay_s + rate_bps * 0.02 / (1514 * 8)
    made.require_room(made.settings.longest_s)
    half_s = delay_s / 2  # jitter needs room too
    assert middle(rate_bps, delay_s=half_s, jitter_s=half_s, loss=0.5).slots == made.slots


@pytest.mark.parametrize(
    ("first_s", "then_s", "frames", "most_s"), [(0.005, 0.25, 1792, 0.217), (9, 9, 65536, 7.938)]
)
def test_a_delay_beyond_the_memory_is_refused_with_the_longest_that_fits(
    first_s, then_s, frames, most_s
):
    words = f"link a--b: a delay of {then_s} s at 100 Mbit/s does not fit .* {frames} frames; "
    with pytest.raises(ValueError, match=f"{words}valid: up to {most_s} s"):
        middle(delay_s=first_s).require_room(then_s)


WAYS = [("a--b", "a"), ("a--b", "b")]
MS, SECOND = 1_000_000, 1_000_000_000


def left(watched: Punctuality, late_ns: Any, at_s: float, *, way: int = 0, wait_ms: int = 5):
    """Frames that left at a moment, so late, after they had waited so long."""
    now_ns = round(at_s * SECOND)
    late = np.atleast_1d(np.asarray(late_ns, dtype=np.int64))
    watched.add(way, now_ns, now_ns - late, np.full(len(late), now_ns - wait_ms * MS))


def worst_of(watched: Punctuality) -> SimpleNamespace:
    return SimpleNamespace(**(watched.worst() or {}))


def waits_of(watched: Punctuality) -> list[tuple[Any, ...]]:
    """Return for each direction the least and the largest mean, and frames left out."""
    return [tuple(wait.values()) for wait in watched.waits()]


def test_lateness_is_summed_up_within_a_bin():
    random = np.random.default_rng(1)
    values_ns = random.integers(0, 3 * MS, 100_000)
    watched = Punctuality(WAYS, 0)
    for number, part in enumerate(np.array_split(values_ns, 90)):
        left(watched, part, number / 100)
    p99_s = worst_of(watched).late_p99_s
    assert p99_s == pytest.approx(np.quantile(values_ns, 0.99) / 1e9, abs=8e-6)
    assert watched.late_max_s() == values_ns.max() / 1e9


def test_no_frames_no_lateness_and_early_is_told_apart():
    watched = Punctuality(WAYS, 0)
    assert watched.late_max_s() == 0.0
    assert watched.worst() is None
    left(watched, [-50_000, -10], 0.1)
    assert watched.late_max_s() == 0.0
    assert watched.early_max_ns == 50_000


def test_the_worst_second_counts_and_not_the_whole_run():
    """30 ms in which the relay stood still are 0.15 % of 20 s, and show."""
    watched = Punctuality(WAYS, 0)
    for millisecond in range(20_000):
        # From 7 s on it stood still for 30 ms; then 30 frames leave at once.
        if 7000 <= millisecond < 7030:
            continue
        late_ns = 50_000 if millisecond != 7030 else np.arange(30) * MS
        left(watched, late_ns, millisecond / 1000, way=millisecond % 2)
    worst = worst_of(watched)
    assert worst.late_p99_s > 0.015
    assert worst.late_max_s == 0.029
    assert 6 < worst.at_s <= 7.03
    assert (worst.link, vars(worst)["from"]) == WAYS[0]


@pytest.mark.parametrize("frames_per_s", [20, 200, 5000])
def test_a_single_late_frame_does_not_make_a_stretch_late(frames_per_s):
    watched = Punctuality(WAYS, 0)
    for number in range(20 * frames_per_s):
        left(watched, 2 * MS if number == 10 * frames_per_s else 50_000, number / frames_per_s)
    worst = worst_of(watched)
    assert worst.late_p99_s < 0.0001
    assert worst.frames >= 300
    assert watched.late_max_s() == 0.002


def test_beyond_the_histogram_the_99th_percentile_is_the_maximum():
    watched = Punctuality(WAYS, 0)
    left(watched, [400 * MS] * 50, 0.1)
    worst = worst_of(watched)
    assert worst.late_p99_s == worst.late_max_s == 0.4


def test_each_direction_has_the_means_of_its_quarters_of_a_second():
    watched = Punctuality(WAYS, 0)
    for tick in range(500):
        left(watched, 0, tick / 100, wait_ms=6 if 200 <= tick < 300 else 5)
    left(watched, 0, 5.0, way=1)
    (least_s, most_s, left_out), other = waits_of(watched)
    assert left_out == 0
    assert least_s == pytest.approx(0.005)
    assert most_s == pytest.approx(0.006, abs=1e-5)
    assert other == (None, None, 0)
    watched.begin(6 * SECOND)
    assert waits_of(watched) == [(None, None, 0)] * 2
    assert watched.worst() is None


def test_a_delay_that_is_changed_on_purpose_is_in_no_mean_of_its_direction():
    watched = Punctuality(WAYS, 0)
    for tick in range(500):
        if tick == 200:
            watched.leave_out(0, math.inf)
        if tick == 300:
            watched.leave_out(0, 3.1 * SECOND)
        for way in (0, 1):
            left(watched, 0, tick / 100, way=way, wait_ms=50 if 200 <= tick < 310 else 5)
    (_, most_s, left_out), (_, other_most_s, other_left_out) = waits_of(watched)
    assert left_out == 110
    assert most_s == pytest.approx(0.005)
    assert (other_most_s, other_left_out) == (pytest.approx(0.05), 0)
    assert watched.late_max_s() == 0


def test_the_same_seed_decides_the_same_whatever_the_batches():
    def fates(seed: tuple[int, int], batches: int) -> tuple[list[bool], list[int]]:
        jitter, loss = generators(seed)
        parts = [len(entry) for entry in np.array_split(np.zeros(1000), batches)]
        survived = [entry for count in parts for entry in kept(loss, 0.1, count).tolist()]
        waits = [entry for count in parts for entry in jitter_ns(jitter, MS, count).tolist()]
        return survived, waits

    assert fates((0, 0), 1) == fates((0, 0), 300) == fates((0, 0), 1000)
    different = [fates((seed, way), 1) for seed in (0, 1) for way in (0, 1)]
    for part in (0, 1):
        assert len({tuple(entry[part]) for entry in different}) == 4
    assert 60 < fates((0, 0), 1)[0].count(False) < 140


def test_jitter_shifts_dense_flows_as_the_documentation_says():
    """Frames of 121 microseconds each and a jitter of 1 ms: 0.48 ms more in the mean."""
    for gap_s, expected_s in ((0.002, 0.0), (0.001, 0.00004), (0.000121, 0.00048), (0, 0.001)):
        came_ns = np.arange(200_000) * round(gap_s * SECOND)
        drawn_ns = came_ns + jitter_ns(generators((1, 0))[0], MS, len(came_ns))
        mean_s = (np.maximum.accumulate(drawn_ns) - came_ns).mean() / SECOND
        assert mean_s == pytest.approx(expected_s, abs=1e-5)


def test_the_bucket_is_half_a_millisecond_but_at_least_two_frames():
    assert LinkShape(rate_bps=1_000_000_000, queue_bytes=1).burst_bytes == 62_500
    assert LinkShape(rate_bps=1_000_000, queue_bytes=1).burst_bytes == 2 * 1514


def printed(there: Any = None, **changes: Any) -> dict[str, str]:
    """Print as tc does of two redirections into netem, by its first argument but one."""
    # `there` are the options of the queue to which the first direction leads.

    def action(device: str, packets: int, overlimits: int) -> dict[str, Any]:
        stats = {"packets": packets, "drops": 0, "overlimits": overlimits}
        return {"kind": "mirred", "to_dev": device, "stats": stats}

    def queue(device: str, options: Any, **counts: int) -> dict[str, Any]:
        return {"kind": "netem", "dev": device, "options": {"limit": 1792, **options}, **counts}

    parts = [
        {"total acts": 1},
        {"actions": [action("paced", 9, 9), action("y", 1000, 30)]},
        {"total acts": 1},
        {"actions": [action("x", 50, 0)]},
    ]
    queues = [
        {"kind": "htb", "dev": "y"},
        queue("y", there or {}, packets=800, drops=150, qlen=50),
        queue("x", {}, packets=50, drops=0, qlen=0),
    ]
    return {"actions": json.dumps(parts), "qdisc": json.dumps(queues), **changes}


def test_what_netem_refused_and_what_it_lost_are_two_numbers(monkeypatch):
    monkeypatch.setattr(netem, "run", lambda argv: printed()[argv[3]])
    there, back = netem.report([middle(loss=0.1)])["directions"]
    counts = {"frames_in": 1000, "frames_out": 800, "dropped": 30, "lost": 120}
    assert there == {"link": "a--b", "from": "a", **counts}
    counts = {"frames_in": 50, "frames_out": 50, "dropped": 0, "lost": 0}
    assert back == {"link": "a--b", "from": "b", **counts}


@pytest.mark.parametrize("changes", [{"actions": ""}, {"actions": "[]"}, {"qdisc": "[]"}])
def test_a_tc_that_tells_nothing_is_an_error(monkeypatch, changes):
    monkeypatch.setattr(netem, "run", lambda argv: printed(**changes)[argv[3]])
    with pytest.raises(CommandError, match="tc printed no statistics"):
        netem.report([middle(loss=0.1)])


def test_netem_tells_what_it_is_set_to(monkeypatch):
    delay = {"delay": {"delay": 0.005, "jitter": 0.001, "correlation": 0}}
    monkeypatch.setattr(netem, "run", lambda argv: printed(delay)[argv[3]])
    there, back = netem.report([middle(delay_s=0.005)])["delays"]
    keys = ("from", "delay_s", "jitter_s", "loss", "slots", "wait_most_s")
    assert [there[key] for key in keys] == ["a", 0.005, 0.001, 0.0, 1792, None]
    assert [back[key] for key in keys] == ["b", 0.0, 0.0, 0.0, 1792, None]
    loss = {"loss-random": {"loss": 0.1, "correlation": 0}}
    monkeypatch.setattr(netem, "run", lambda argv: printed(loss)[argv[3]])
    assert netem.report([middle(loss=0.1)])["delays"][0]["loss"] == 0.1
