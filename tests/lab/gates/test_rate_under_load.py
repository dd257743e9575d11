"""A link whose shaper is set wrong while the run trains."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("share", [0.95, pytest.param(1.05, marks=pytest.mark.long)])
def test_a_rate_that_changes_by_a_twentieth_is_found_and_its_link_named(
    wrong_lab: WrongLab, share: float
):
    rate_bps = wrong_lab.rate_bps

    def reset(lab: RunningLab) -> None:
        bucket = str(int(rate_bps * 0.0005 / 8))
        rate = ["rate", f"{round(rate_bps * share)}bit", "burst", bucket, "cburst", bucket]
        words = ["class", "change", "dev", "s1-eth1", "parent", "1:", "classid", "1:10", "htb"]
        lab.run_in(lab.switches(), "tc", *words, *rate, "quantum", "1514")

    results = wrong_lab.run(
        meanwhile=reset,
        after_s=0.0,
        arms={"tcp": {"protocol": "tcp"}},
        # Deep enough that it cannot run empty between two samples.
        topology={"name": "star", "workers": 3, "rate_bps": rate_bps, "queue_bytes": 300_000},
    )
    gate = assert_invalid(results, "rate_under_load", where="server--s1 from s1", arm="tcp")
    assert 0.03 < gate["value"] < 0.07
