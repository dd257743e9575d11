"""Training's parts: mean, shares, announcements, barriers."""

import threading

import numpy as np
import pytest

from testbed.training import coordination, datasets, phase_announcement
from testbed.training.coordination import CoordinationError, Coordinator, Follower
from testbed.training.vectors import mean_into


def test_the_mean_is_added_in_rank_order():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=1000).astype(np.float32) for _ in range(3)]
    out = np.empty(1000, dtype=np.float32)
    mean_into(parts, out)
    np.testing.assert_array_equal(out, ((parts[0] + parts[1]) + parts[2]) / np.float32(3))


def test_an_epoch_visits_every_sample_once():
    stream = datasets.batches(np.arange(100), 10, seed=1, rank=0)
    first = np.concatenate([next(stream) for _ in range(10)])
    second = np.concatenate([next(stream) for _ in range(10)])
    assert sorted(first) == sorted(second) == list(range(100))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("critical", [True, False])
def test_an_announcement_comes_back(critical):
    assert phase_announcement.decode(phase_announcement.encode(critical)) is critical


@pytest.mark.parametrize("body", [b"", b"\x02", b"\x00\x00"])
def test_a_strange_announcement_is_refused(body):
    with pytest.raises(ValueError, match="phase"):
        phase_announcement.decode(body)


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


def joined(path, names, **options):
    """A coordinator and the followers that have reached `x`."""
    listener = coordination.listen(path)
    followers = {}

    def join(name):
        followers[name] = Follower(path, name, 10)
        followers[name].reach("x", value=name)

    threads = [threading.Thread(target=join, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    coordinator = Coordinator(listener, names, 10, **options)
    for thread in threads:
        thread.join(10)
    assert list(coordinator.gather("x")) == names
    return coordinator, followers


def test_a_worker_that_leaves_is_named(tmp_path):
    coordinator, followers = joined(tmp_path / "c.sock", ["worker-1", "worker-2"])
    followers["worker-1"].reach("y")
    del followers["worker-2"]
    with pytest.raises(CoordinationError, match="worker-2: closed"):
        coordinator.gather("y")


def test_a_barrier_goes_on_without_those_who_left_until_nobody_is_there(tmp_path):
    coordinator, followers = joined(tmp_path / "c.sock", ["a", "b", "c"], keep_going=True)
    del followers["b"]
    for name in ("a", "c"):
        followers[name].reach("y")
    assert list(coordinator.gather("y")) == ["a", "c"]
    assert coordinator.present == ["a", "c"]
    assert coordinator.lost == {"b": "b: closed its connection"}
    coordinator.drop("c", "silent for 30 s")
    coordinator.release("y")
    followers["a"].wait("y")
    assert coordinator.lost["c"] == "silent for 30 s"
    with pytest.raises(CoordinationError, match="server: closed"):
        followers["c"].wait("y")
    del followers["a"]
    with pytest.raises(CoordinationError, match="a: closed"):
        coordinator.gather("z")
