"""The order of execution: arms of one point and seed stay together."""

from __future__ import annotations

import functools
import json

from testbed import experiment
from testbed.experiment.run import key_of
from testbed.run import planning
from testbed.shared.run_directory import read_json
from tests.experiment import small

ARMS = {name: {"protocol": name} for name in ("dblp", "fixed-low", "fixed-high", "tcp-cubic")}
FACTORS = {"impairments.0.q": [0.6, 0.7, 0.8, 0.9]}

write = functools.partial(small.write, arms=ARMS, factors=FACTORS)


def test_arms_of_one_point_and_seed_follow_one_another_in_changing_order(tmp_path):
    runs = experiment.ordered(experiment.load(write(tmp_path), seeds=5))
    blocks = [runs[start : start + 4] for start in range(0, 4 * 4 * 5, 4)]
    assert len(runs) == 4 * 4 * 5
    for block in blocks:
        assert len({(run.seed, run.factors["impairments.0.q"]) for run in block}) == 1
        assert {run.arm for run in block} == set(ARMS)
    assert [block[0].seed for block in blocks] == sorted([1, 2, 3, 4, 5] * 4)
    assert {block[0].arm for block in blocks} == set(ARMS)
    points = [block[0].factors["impairments.0.q"] for block in blocks]
    assert len({tuple(points[start : start + 4]) for start in range(0, 20, 4)}) > 1


def test_the_order_of_the_rest_does_not_change_when_runs_are_left_out(tmp_path):
    path = write(tmp_path)
    all_of_them = experiment.ordered(experiment.load(path, seeds=5))
    some = experiment.ordered(experiment.load(path, seeds=2, arms=["tcp-cubic", "dblp"]))
    kept = [
        run.key for run in all_of_them if run.arm in ("tcp-cubic", "dblp") and run.seed in (1, 2)
    ]
    assert [run.key for run in some] == kept
    assert [run.key for run in experiment.ordered(list(reversed(some)))] != kept[::-1]


def test_a_key_is_that_of_the_configuration_as_it_is_written(tmp_path):
    for run in experiment.load(write(tmp_path), seeds=2):
        written = json.loads(json.dumps(run.config() | {"capture": ["worker-1"]}))
        assert key_of(written) == run.key
        assert key_of(written | {"rounds": written["rounds"] + 1}) != run.key


def test_the_plan_records_order_and_profile_and_the_arms_in_the_file_s_order(tmp_path):
    runs = experiment.ordered(experiment.load(write(tmp_path)))
    planning.extend(tmp_path / "out", runs)
    plan = read_json(tmp_path / "out" / "small" / "plan.json")
    assert [each["key"] for each in plan["runs"]] == [run.key for run in runs]
    assert "SHA-256" in plan["order"]
    assert plan["profile"] == "laptop"
    written = read_json(tmp_path / "out" / "small" / "experiment.json")
    assert written["arms"] == list(experiment.load(write(tmp_path))[0].experiment.arms)
