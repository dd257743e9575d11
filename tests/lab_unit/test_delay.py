"""What the middle of a link may be asked for, and how the relay's lateness is summed up."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from testbed.lab.delay import DelaySettings, DirectionCounters, Middle, RelayReport, netem
from testbed.lab.delay.relay import Lateness
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
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DelaySettings(**settings)


@pytest.mark.parametrize("rate_bps", [1_000_000, 100_000_000, 1_000_000_000])
@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.02, 0.1])
def test_the_relay_s_memory_holds_twice_the_delay_at_full_rate(rate_bps, delay_s):
    made = middle(rate_bps, delay_s=delay_s)
    assert made.slots & (made.slots - 1) == 0
    assert made.slots >= rate_bps * 2 * delay_s / (1514 * 8)
    made.require_room(DelaySettings(delay_s=2 * delay_s))


def test_a_delay_beyond_the_memory_is_refused_with_the_longest_that_fits():
    with pytest.raises(ValueError, match=r"link a--b: .* valid: up to 0\.062 s"):
        middle(delay_s=0.005).require_room(DelaySettings(delay_s=0.07))


def test_descriptions_survive_json():
    made = middle(delay_s=0.005, jitter_s=0.001, loss=0.1)
    assert Middle.from_json(json.loads(json.dumps(asdict(made)))) == made
    counters = DirectionCounters(
        link="a--b", sender="a", frames_in=10, frames_out=5, dropped=1, lost=2
    )
    report = RelayReport(
        scheduling="nice",
        cpu_s=1.0,
        wall_s=2.0,
        late_p50_s=0.1,
        late_p99_s=0.2,
        late_max_s=0.3,
        directions=[counters],
    )
    document = json.loads(json.dumps(report.as_json()))
    assert document["directions"][0]["from"] == "a"
    assert RelayReport.from_json(document) == report
    assert report.dropped == 1


def test_lateness_is_summed_up_within_a_bin():
    random = np.random.default_rng(1)
    values_ns = random.integers(0, 3_000_000, 100_000)
    late = Lateness()
    for part in np.array_split(values_ns, 700):
        late.add(part)
    p50_s, p99_s, max_s = late.summary_s()
    assert p50_s == pytest.approx(np.quantile(values_ns, 0.5) / 1e9, abs=4e-6)
    assert p99_s == pytest.approx(np.quantile(values_ns, 0.99) / 1e9, abs=4e-6)
    assert max_s == values_ns.max() / 1e9


def test_no_frames_no_lateness_and_early_is_punctual():
    late = Lateness()
    assert late.summary_s() == (0.0, 0.0, 0.0)
    late.add(np.array([-50_000, -10]))
    assert late.summary_s() == (0.0, 0.0, 0.0)


def test_the_bucket_is_half_a_millisecond_but_at_least_two_frames():
    assert LinkShape(rate_bps=1_000_000_000, queue_bytes=1).burst_bytes == 62_500
    assert LinkShape(rate_bps=1_000_000, queue_bytes=1).burst_bytes == 2 * 1514


def printed(**changes: Any) -> dict[str, str]:
    """What tc prints of two redirections into netem, by its first argument but one."""

    def action(device: str, packets: int, overlimits: int) -> dict[str, Any]:
        stats = {"packets": packets, "drops": 0, "overlimits": overlimits}
        return {"kind": "mirred", "to_dev": device, "stats": stats}

    def queue(device: str, **counts: int) -> dict[str, Any]:
        return {"kind": "netem", "dev": device, **counts}

    parts = [
        {"total acts": 1},
        {"actions": [action("paced", 9, 9), action("y", 1000, 30)]},
        {"total acts": 1},
        {"actions": [action("x", 50, 0)]},
    ]
    queues = [
        {"kind": "htb", "dev": "y"},
        queue("y", packets=800, drops=150, qlen=50),
        queue("x", packets=50, drops=0, qlen=0),
    ]
    return {"actions": json.dumps(parts), "qdisc": json.dumps(queues), **changes}


def test_what_netem_refused_and_what_it_lost_are_two_numbers(monkeypatch):
    monkeypatch.setattr(netem, "run", lambda argv: printed()[argv[3]])
    there, back = netem.counters([middle(loss=0.1)])
    counts = {"link": "a--b", "frames_in": 1000, "frames_out": 800, "dropped": 30, "lost": 120}
    assert asdict(there) == {**counts, "sender": "a"}
    assert (back.sender, back.frames_in, back.frames_out, back.dropped, back.lost) == (
        *("b", 50, 50, 0, 0),
    )


@pytest.mark.parametrize("changes", [{"actions": ""}, {"actions": "[]"}, {"qdisc": "[]"}])
def test_a_tc_that_tells_nothing_is_an_error(monkeypatch, changes):
    monkeypatch.setattr(netem, "run", lambda argv: printed(**changes)[argv[3]])
    with pytest.raises(CommandError, match="tc printed no statistics"):
        netem.counters([middle(loss=0.1)])
