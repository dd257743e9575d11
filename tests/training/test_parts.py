"""Training's parts: phases, mean, shares, announcements, barriers."""

import threading

import numpy as np
import pytest
import torch

from testbed.training import coordination, datasets, models
from testbed.training.aggregation import mean_into
from testbed.training.announcement import Phase
from testbed.training.coordination import CoordinationError, Coordinator, Follower
from testbed.training.phases import GradientNormDetector
from testbed.training.worker import apply_gradient


def phases(norms, *, eta=0.5, every_rounds=1):
    detector = GradientNormDetector(eta=eta, every_rounds=every_rounds)
    seen = []
    for round_number, norm in enumerate(norms):
        detector.observe(round_number, norm)
        seen.append(detector.critical)
    return seen


def test_training_starts_critical_and_leaves_when_the_norm_settles():
    assert phases([4.0, 3.9, 3.8]) == [True, False, False]


@pytest.mark.parametrize(("second", "critical"), [(1.5, True), (0.5, True), (1.49, False)])
def test_a_change_of_half_in_either_direction_is_critical(second, critical):
    assert phases([1.0, second])[-1] is critical


def test_between_two_looks_the_answer_holds():
    norms = [1.0, 9.0, 9.0, 1.1, 9.0, 9.0, 3.0, 1.0]
    assert phases(norms, every_rounds=3) == [True, True, True, False, False, False, True, True]


@pytest.mark.parametrize("odd", [0.0, float("nan"), float("inf")])
def test_a_norm_that_cannot_be_compared_is_critical(odd):
    assert phases([odd, 1.0])[-1] is True
    if odd != 0.0:
        assert phases([1.0, odd])[-1] is True


def test_the_mean_is_added_in_rank_order():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=1000).astype(np.float32) for _ in range(3)]
    out = np.empty(1000, dtype=np.float32)
    mean_into(parts, out)
    np.testing.assert_array_equal(out, ((parts[0] + parts[1]) + parts[2]) / np.float32(3))


def test_shares_are_disjoint_equal_and_seeded():
    shares = [datasets.share(1438, rank, 3, seed=5) for rank in range(3)]
    together = np.concatenate(shares)
    assert sorted(together) == list(range(1438))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    np.testing.assert_array_equal(shares[1], datasets.share(1438, 1, 3, seed=5))
    assert not np.array_equal(shares[1], datasets.share(1438, 1, 3, seed=6))


def test_an_epoch_visits_every_sample_once():
    stream = datasets.batches(np.arange(100), 10, seed=1, rank=0)
    first = np.concatenate([next(stream) for _ in range(10)])
    second = np.concatenate([next(stream) for _ in range(10)])
    assert sorted(first) == sorted(second) == list(range(100))
    assert not np.array_equal(first, second)


def test_digits_are_real_and_split_without_overlap():
    dataset = datasets.load("digits")
    assert dataset.train_inputs.shape == (1438, 1, 8, 8)
    assert dataset.test_inputs.shape == (359, 1, 8, 8)
    assert abs(float(dataset.train_inputs.mean())) < 1e-5
    assert set(dataset.test_labels.tolist()) == set(range(10))


def test_replicas_start_equal_and_depend_on_the_seed():
    first, same, other = (models.build("small-cnn", seed) for seed in (1, 1, 2))
    pairs = list(zip(first.parameters(), same.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    assert sum(count for _, count in models.tensor_sizes(first)) == 50_311


def test_applying_a_flat_gradient_equals_plain_sgd():
    model = models.build("small-cnn", 3)
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    flat = np.linspace(-1, 1, before.numel(), dtype=np.float32)
    apply_gradient(model, torch.optim.SGD(model.parameters(), lr=0.5), flat)
    after = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    assert torch.equal(after, before - 0.5 * torch.from_numpy(flat))


@pytest.mark.parametrize("critical", [True, False])
def test_an_announcement_comes_back(critical):
    assert Phase.decode(Phase(critical).encode()) == Phase(critical)


@pytest.mark.parametrize("body", [b"", b"\x02", b"\x00\x00"])
def test_a_strange_announcement_is_refused(body):
    with pytest.raises(ValueError, match="phase"):
        Phase.decode(body)


def test_a_barrier_holds_until_the_last_worker_has_come(tmp_path):
    path = tmp_path / "c.sock"
    listener = coordination.listen(path)
    order: list[str] = []
    go = threading.Event()

    def worker(name: str) -> None:
        follower = Follower(path, name, 10)
        if name == "b":
            go.wait(10)
        order.append(f"{name} came")
        follower.reach("x", value=name)
        follower.wait("x")
        order.append(f"{name} left")

    threads = [threading.Thread(target=worker, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    coordinator = Coordinator(listener, ["a", "b"], 10)
    go.set()
    facts = coordinator.gather("x")
    assert {name: message["value"] for name, message in facts.items()} == {"a": "a", "b": "b"}
    assert sorted(order) == ["a came", "b came"]
    coordinator.release("x")
    for thread in threads:
        thread.join(10)
    assert sorted(order[2:]) == ["a left", "b left"]


def test_a_worker_that_leaves_is_named(tmp_path):
    path = tmp_path / "c.sock"
    listener = coordination.listen(path)
    thread = threading.Thread(target=lambda: Follower(path, "worker-2", 10))
    thread.start()
    coordinator = Coordinator(listener, ["worker-2"], 10)
    thread.join(10)
    with pytest.raises(CoordinationError, match="worker-2: left"):
        coordinator.gather("x")
