"""What a rank occupies: a multiple of the gradient that does not grow with the number of ranks."""

import pytest

from tests.benchmarks.ddp_step import memory_ratios


@pytest.mark.parametrize("ranks", [3, pytest.param(8, marks=pytest.mark.long)])
def test_a_rank_needs_at_most_five_gradients(ranks):
    (ratio,) = memory_ratios(ranks, buckets=4, megabytes=10, chosen=("sharded",)).values()
    assert ratio < 5
