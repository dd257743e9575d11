"""Parts of a sweep: no block is divided, none is in two parts, and nothing decides but the runs."""

from __future__ import annotations

import pytest

from testbed import experiment
from testbed.experiment import blocks
from testbed.experiment.blocks import Shard
from testbed.shared.input_error import InputError
from tests.experiment.test_order import ARMS, write


@pytest.mark.parametrize("of", [1, 3, 4, 20])
def test_parts_have_whole_blocks_and_are_as_large_as_each_other(tmp_path, of):
    runs = experiment.load(write(tmp_path), seeds=5)  # 20 blocks
    parts = blocks.shards(runs, of)
    assert set(parts) == {run.key for run in runs}
    assert blocks.shards(runs[::-1], of).keys() == parts.keys()
    for block in blocks.blocks(runs):
        assert {run.arm for run in block} == set(ARMS)
        assert len({parts[run.key] for run in block}) == 1
    sizes = [sum(part == Shard(n, of) for part in parts.values()) for n in range(1, of + 1)]
    assert max(sizes) - min(sizes) <= len(ARMS)
    assert min(sizes) > 0


def test_parts_do_not_depend_on_arms_that_are_left_out_or_on_the_order_of_the_file(tmp_path):
    every = blocks.shards(experiment.load(write(tmp_path), seeds=5), 3)
    some = blocks.shards(experiment.load(write(tmp_path), seeds=5, arms=["tcp-cubic"]), 3)
    assert some == {key: every[key] for key in some}
    turned = dict(reversed(ARMS.items()))
    assert blocks.shards(experiment.load(write(tmp_path, arms=turned), seeds=5), 3) == every


def test_all_points_of_a_seed_are_in_one_part_where_seeds_can_be_shared_out(tmp_path):
    runs = experiment.load(write(tmp_path), seeds=6)
    parts = blocks.shards(runs, 3)
    of_seeds = {seed: {parts[run.key] for run in runs if run.seed == seed} for seed in range(1, 7)}
    assert {len(each) for each in of_seeds.values()} == {1}


@pytest.mark.parametrize("text", ["", "0/2", "3/2", "1", "1/", "1/0", "-1/2", "1/2/3", "a/b"])
def test_a_wrong_part_is_one_line(text):
    with pytest.raises(InputError, match=r"--shard .*valid: I/N"):
        blocks.parse(text)


def test_a_part_that_would_be_empty_is_refused(tmp_path):
    runs = experiment.load(write(tmp_path), seeds=1)
    with pytest.raises(InputError, match="valid: at most 4 parts"):
        blocks.shards(runs, 5)
