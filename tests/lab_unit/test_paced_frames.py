"""The frames of a burst come in clumps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.lab.paced_frames import clump_frames


@pytest.mark.parametrize(
    ("rate_bps", "link_rate_bps", "frames"),
    [
        (50e6, 100e6, 1),  # less than the link carries
        (300e6, 100e6, 4),  # in the time of which 1.3 leave the queue
        (2.1e9, 700e6, 19),  # 18 would do for the timers, but let just 6 leave
        (30e9, 10e9, 31),  # as many as the kernel copies at once
    ],
)
def test_clumps_are_rare_and_out_of_step_with_the_queue(rate_bps, link_rate_bps, frames):
    result = clump_frames(rate_bps=rate_bps, link_rate_bps=link_rate_bps, frame_bytes=1514)
    assert result == frames


@given(factor=st.integers(2, 100), link_rate_bps=st.integers(1_000_000, 10_000_000_000))
def test_a_clump_never_takes_a_whole_number_of_departures(factor, link_rate_bps):
    rate_bps = factor * link_rate_bps
    frames = clump_frames(rate_bps=rate_bps, link_rate_bps=link_rate_bps, frame_bytes=1514)
    assert 1 <= frames <= 32
    assert frames % factor != 0
