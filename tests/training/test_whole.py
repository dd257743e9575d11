"""Whole trainings: what they come to, also when workers die and come back."""

import json
from typing import Any

import pytest
import torch

from testbed.shared import run_directory
from testbed.training import checkpoint, server
from testbed.transport import preset
from tests.training.single_process import single_process_weights
from tests.training.whole import RELIABLE, Whole

ALL = ["worker-1", "worker-2", "worker-3"]
REJOIN: dict[str, Any] = {"on_worker_loss": "rejoin"}


def gathered(whole):
    """Whose gradients each round averaged, as ranks."""
    found: dict[int, list[int]] = {}
    for each in whole.events("transfers-server"):
        if each["leg"] == "gather":
            found.setdefault(each["round"], []).append(ALL.index(each["peer"]))
    return [sorted(found[number]) for number in sorted(found)]


def assert_weights(whole, names, parts):
    """All have those that come of averaging the gradients of `parts`, ranks by round."""
    expected = single_process_weights(
        rounds=len(parts),
        workers=3,
        seed=1,
        batch_size=16,
        learning_rate=0.05,
        momentum=0.9,
        parts=parts,
    )
    for name in names:
        found = whole.weights(name)
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.equal(found[key], tensor), (name, key)


@pytest.mark.parametrize("protocol", [RELIABLE, preset("tcp")], ids=["udp", "tcp"])
def test_gradients_are_added_in_rank_order_whichever_came_first(tmp_path, protocol):
    whole = Whole(tmp_path, protocol=protocol, rounds=10, pace="real")
    assert whole.run() == 0
    assert_weights(whole, ALL, [[0, 1, 2]] * 10)


def test_replicas_of_quantised_gradients_are_equal_in_the_end(tmp_path):
    settings: dict[str, Any] = {"filling": "signs", "rounds": 6, "pace": "real"}
    whole = Whole(tmp_path, protocol=preset("one-bit"), **settings)
    assert whole.run() == 0
    begun, first = whole.context.model_and_data.model(0), whole.weights("worker-1")
    for name in ("worker-2", "worker-3"):
        other = whole.weights(name)
        assert all(torch.equal(first[key], other[key]) for key in first)
    assert all(not torch.equal(first[key], each) for key, each in begun.named_parameters())


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        (RELIABLE, {"filling": "error-feedback"}),
        (preset("tcp"), {}),
    ],
    ids=["udp", "tcp"],
)
def test_a_worker_that_dies_twice_is_equal_to_the_others_in_the_end(tmp_path, protocol, settings):
    whole = Whole(tmp_path, protocol=protocol, rounds=14, **REJOIN, **settings)
    whole.deaths["worker-2"] = [3, 2]
    assert whole.run() == 0
    log = whole.events("rounds")
    assert [each["round"] for each in log] == list(range(14))
    first, second = (each["round"] for each in whole.events("returns"))
    gone = {*range(2, first), *range(first + 1, second)}
    parts = [[0, 2] if number in gone else [0, 1, 2] for number in range(14)]
    assert gathered(whole) == parts
    assert {each["round"] for each in log if each["workers_lost"]} == gone
    assert [each["round"] for each in log if each["workers_returned"]] == [first, second]
    trained = whole.events("training-worker-2")
    assert [each["round"] for each in trained] == [
        number for number in range(14) if number not in gone
    ]
    elapsed = [each["elapsed_s"] for each in trained]
    assert elapsed == sorted(elapsed)
    assert_weights(whole, ALL, parts)


def test_resynchronisations_and_measurements_go_on(tmp_path):
    settings: dict[str, Any] = {"resynchronise_every": 2, "measure_every": 1, "optimiser": "adam"}
    arm = preset("dblp", low=0.2, high=0.2, order="shuffled")
    whole = Whole(tmp_path, protocol=arm, rounds=12, **REJOIN, **settings)
    whole.deaths["worker-2"] = [3]
    assert whole.run() == 0
    (back,) = (each["round"] for each in whole.events("returns"))
    assert [each["round"] for each in whole.events("resynchronisations")] == list(range(1, 12, 2))
    for each in whole.events("effects"):
        assert ("worker-2" in each["applied"]) is not (2 <= each["round"] < back)
    first, second = (whole.weights(name) for name in ("worker-1", "worker-2"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    rounds = {each["round"] for each in whole.events("congestion-worker-1")}
    assert rounds <= set(range(12))


def test_one_that_dies_again_and_again_is_left_behind(tmp_path):
    whole = Whole(tmp_path, rounds=14, restarts={"most": 2}, **REJOIN)
    whole.deaths["worker-2"] = [3, 1, 1]
    assert whole.run() == 0
    assert [each["restart"] for each in whole.events("restarts")] == [1, 2]
    lost = (tmp_path / "logs" / run_directory.LOST_WORKERS).read_text()
    assert lost == "worker-2: killed by SIGKILL\n"
    parts = [[0, 1, 2]] * 2 + [[0, 2]] * 12
    assert gathered(whole) == parts
    assert_weights(whole, ["worker-1", "worker-3"], parts)
    assert not (tmp_path / "weights-worker-2.pt").exists()


def test_what_was_remembered_of_a_worker_is_forgotten_when_it_comes_back(tmp_path, monkeypatch):
    take_back, seen = server._Server._take_back, tmp_path / "seen.json"

    def look(self, number):
        take_back(self, number)
        if self._returned:
            kept = {name: bool(each.any()) for name, each in self._gathered.items()}
            residuals = {
                name: bool(memory["owed"].any()) for name, memory in self._debts.state().items()
            }
            seen.write_text(json.dumps([kept, residuals]))

    monkeypatch.setattr(server._Server, "_take_back", look)  # in the forked server, too
    arm = preset("dblp", low=0.3, high=0.3, order="shuffled")
    whole = Whole(tmp_path, protocol=arm, rounds=10, filling="error-feedback", **REJOIN)
    whole.deaths["worker-2"] = [3]
    assert whole.run() == 0
    kept, residuals = json.loads(seen.read_text())
    assert kept == {"worker-1": True, "worker-2": False, "worker-3": True}
    assert residuals["worker-2"] is False


def test_checkpoints_are_of_all_workers_and_the_training_goes_on_with_all(tmp_path):
    settings: dict[str, Any] = {"checkpoint_every": 1, "on_worker_loss": "continue"}
    whole = Whole(tmp_path, rounds=6, **settings)
    whole.deaths["worker-2"] = [4]
    assert whole.run() == 0
    assert gathered(whole) == [[0, 1, 2]] * 3 + [[0, 2]] * 3
    assert checkpoint.latest(tmp_path) == 3
    later = Whole(tmp_path, rounds=6, first_round=3, **settings)
    assert later.run() == 0
    assert_weights(later, ALL, [[0, 1, 2]] * 6)


def test_checkpoints_are_taken_again_when_all_are_back(tmp_path):
    whole = Whole(tmp_path, rounds=10, checkpoint_every=1, **REJOIN)
    whole.deaths["worker-2"] = [3]
    assert whole.run() == 0
    parts = gathered(whole)
    assert checkpoint.latest(tmp_path) == 9
    later = Whole(tmp_path, rounds=10, first_round=9, checkpoint_every=1, **REJOIN)
    assert later.run() == 0
    assert_weights(later, ALL, parts)
