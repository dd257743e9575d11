"""A link whose shaper is set wrong while the run trains."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab


def set_rate(lab: RunningLab, rate_bps: float) -> None:
    """Set what the first switch sends to the server, as its shaper has it."""
    bucket = str(int(rate_bps * 0.0005 / 8))
    rate = ["rate", f"{round(rate_bps)}bit", "burst", bucket, "cburst", bucket]
    words = ["class", "change", "dev", "s1-eth1", "parent", "1:", "classid", "1:10", "htb"]
    lab.run_in(lab.switches(), "tc", *words, *rate, "quantum", "1514")


def test_a_rate_that_changes_by_a_twentieth_is_found_and_its_link_named(
    wrong_lab: WrongLab,
):
    rate_bps = wrong_lab.rate_bps
    results = wrong_lab.run(
        meanwhile=lambda lab: set_rate(lab, rate_bps * 0.95),
        after_s=0.0,
        arms={"tcp": {"protocol": "tcp"}},
        # Deep enough that it cannot run empty between two samples.
        topology={"name": "star", "workers": 3, "rate_bps": rate_bps, "queue_bytes": 300_000},
    )
    gate = assert_invalid(results, "rate_under_load", where="server--s1 from s1", arm="tcp")
    # Late timers let credit of a bucket of half a millisecond expire, so a busy machine sends less.
    assert 0.03 < gate["value"] < 0.1
