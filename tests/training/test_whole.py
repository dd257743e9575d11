"""Whole trainings: what they come to, also when a worker dies."""

from typing import Any

import pytest
import torch

from testbed.shared import run_directory
from testbed.transport import preset
from tests.training.single_process import single_process_weights
from tests.training.whole import RELIABLE, Whole

ALL = ["worker-1", "worker-2", "worker-3"]


def gathered(whole):
    """Whose gradients each round averaged, as ranks."""
    found: dict[int, list[int]] = {}
    for each in whole.events("transfers-server"):
        if each["leg"] == "gather":
            found.setdefault(each["round"], []).append(ALL.index(each["peer"]))
    return [sorted(found[number]) for number in sorted(found)]


def assert_weights(whole, names, parts):
    """All have those that come of averaging the gradients of `parts`, ranks by round."""
    settings = {"workers": 3, "seed": 1, "batch_size": 16, "learning_rate": 0.05, "momentum": 0.9}
    expected = single_process_weights(rounds=len(parts), parts=parts, **settings)
    for name in names:
        found = whole.weights(name)
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.equal(found[key], tensor), (name, key)


@pytest.mark.parametrize("protocol", [RELIABLE, preset("tcp")], ids=["udp", "tcp"])
def test_gradients_are_added_in_rank_order_whichever_came_first(tmp_path, protocol):
    whole = Whole(tmp_path, protocol=protocol, rounds=10)
    assert whole.run() == 0
    assert_weights(whole, ALL, [[0, 1, 2]] * 10)


def test_replicas_of_quantised_gradients_are_equal_in_the_end(tmp_path):
    settings: dict[str, Any] = {"filling": "signs", "rounds": 6}
    whole = Whole(tmp_path, protocol=preset("one-bit"), **settings)
    assert whole.run() == 0
    begun, first = whole.context.model_and_data.model(0), whole.weights("worker-1")
    for name in ("worker-2", "worker-3"):
        other = whole.weights(name)
        assert all(torch.equal(first[key], other[key]) for key in first)
    assert all(not torch.equal(first[key], each) for key, each in begun.named_parameters())


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [(RELIABLE, {"filling": "error-feedback"}), (preset("tcp"), {})],
    ids=["udp", "tcp"],
)
def test_the_others_go_on_without_a_worker_that_dies(tmp_path, protocol, settings):
    whole = Whole(tmp_path, protocol=protocol, rounds=8, on_worker_loss="continue", **settings)
    whole.deaths["worker-2"] = 3
    assert whole.run() == 0
    log = whole.events("rounds")
    assert [each["round"] for each in log] == list(range(8))
    parts = [[0, 1, 2]] * 2 + [[0, 2]] * 6
    assert gathered(whole) == parts
    assert [bool(each["workers_lost"]) for each in log] == [False] * 2 + [True] * 6
    lost = (tmp_path / "logs" / run_directory.LOST_WORKERS).read_text()
    assert lost == "worker-2: killed by SIGKILL\n"
    assert_weights(whole, ["worker-1", "worker-3"], parts)
    assert not (tmp_path / "weights-worker-2.pt").exists()


def test_resynchronisations_and_measurements_go_on(tmp_path):
    settings: dict[str, Any] = {"resynchronise_every": 2, "measure_every": 1, "optimiser": "adam"}
    arm = preset("dblp", low=0.2, high=0.2, order="shuffled")
    whole = Whole(tmp_path, protocol=arm, rounds=8, on_worker_loss="continue", **settings)
    whole.deaths["worker-2"] = 3
    assert whole.run() == 0
    assert [each["round"] for each in whole.events("resynchronisations")] == list(range(1, 8, 2))
    for each in whole.events("effects"):
        assert ("worker-2" in each["applied"]) is (each["round"] < 2)
    first, third = (whole.weights(name) for name in ("worker-1", "worker-3"))
    assert all(torch.equal(first[key], third[key]) for key in first)
    assert {each["round"] for each in whole.events("congestion-worker-1")} <= set(range(8))
