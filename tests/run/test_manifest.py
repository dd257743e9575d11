"""What the manifest says of draws that no seed decides."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.lab.network import LabInfo, LinkEnds, Port
from testbed.run import manifest


@pytest.mark.parametrize(
    ("delayed_by", "threshold_bytes", "kinds"),
    [
        (None, None, []),
        ("relay", None, []),
        ("netem", None, ["netem"]),
        ("netem", 30_000, ["netem", "red"]),
        ("relay", 30_000, ["red"]),
    ],
)
def test_the_kernels_own_draws_are_listed(delayed_by: Any, threshold_bytes: Any, kinds: list[str]):
    end = Port(node="s1", interface="s1-eth1", number=1, pid=None)
    link = LinkEnds(
        name="s1--s2",
        first=end,
        second=end,
        rate_bps=10**7,
        queue_bytes=90_000,
        ecn_threshold_bytes=threshold_bytes,
    )
    lab = LabInfo(hosts={}, switches={}, links=[link], delayed_by=delayed_by)
    found = manifest.unseeded(lab)
    assert [each.rpartition("(")[2].rstrip(")") for each in found] == kinds
