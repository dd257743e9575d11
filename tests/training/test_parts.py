"""Training's parts: mean, shares, announcements, barriers."""

import multiprocessing
import socket
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.training import barriers, logs, worker
from testbed.training.barriers import BarrierClient, BarrierError, BarrierServer
from testbed.training.datasets import splits
from testbed.training.filling import mean_into
from testbed.training.state import SharedVectors
from testbed.transport import PayloadLayout


def test_the_mean_is_added_in_rank_order():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=1000).astype(np.float32) for _ in range(3)]
    out = np.empty(1000, dtype=np.float32)
    mean_into(parts, out)
    np.testing.assert_array_equal(out, ((parts[0] + parts[1]) + parts[2]) / np.float32(3))


def test_an_epoch_visits_every_sample_once():
    stream = splits.batches(np.arange(100), 10, seed=1, rank=0)
    first = np.concatenate([next(stream) for _ in range(10)])
    second = np.concatenate([next(stream) for _ in range(10)])
    assert sorted(first) == sorted(second) == list(range(100))
    assert not np.array_equal(first, second)


def test_an_announced_phase_comes_back_and_anything_else_is_refused():
    for critical in (True, False):
        assert worker.decode_phase(bytes([critical])) is critical
    for body in (b"", b"\x02", b"\x00\x00"):
        with pytest.raises(ValueError, match="phase"):
            worker.decode_phase(body)


def joined(path, names, **options):
    """A server and the clients that have reached `x`."""
    listener = barriers.listen(path)
    clients = {}

    def join(name):
        clients[name] = BarrierClient(barriers.connect(path, 10), name)
        clients[name].reach("x", value=name)

    threads = [threading.Thread(target=join, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    server = BarrierServer(listener, names, 10, **options)
    for thread in threads:
        thread.join(10)
    # It has waited for the last of them.
    facts = [(name, gathered["value"]) for name, gathered in server.gather("x").items()]
    assert facts == [(name, name) for name in names]
    return server, clients


def test_strangers_are_ignored_and_counted(tmp_path):
    listener = barriers.listen(tmp_path / "c.sock")
    strangers = []
    for greeting in (b'{"name": "other"}\n', b"garbage\n", b"[1]\n", b'{"name": ["a"]}\n', b""):
        stranger = barriers.connect(tmp_path / "c.sock", 10)
        stranger.sendall(greeting)
        stranger.shutdown(socket.SHUT_WR)
        strangers.append(stranger)
    client = BarrierClient(barriers.connect(tmp_path / "c.sock", 10), "a")
    server = BarrierServer(listener, ["a"], 10)
    assert (server.present, server.ignored) == (["a"], len(strangers))
    client.reach("x")
    assert list(server.gather("x")) == ["a"]


def test_a_worker_that_leaves_is_named(tmp_path):
    server, clients = joined(tmp_path / "c.sock", ["worker-1", "worker-2"])
    clients["worker-1"].reach("y")
    del clients["worker-2"]
    with pytest.raises(BarrierError, match="worker-2: closed"):
        server.gather("y")


def test_a_barrier_goes_on_without_those_who_left_until_nobody_is_there(tmp_path):
    server, clients = joined(tmp_path / "c.sock", ["a", "b", "c"], keep_going=True)
    del clients["b"]
    for name in ("a", "c"):
        clients[name].reach("y")
    assert list(server.gather("y")) == ["a", "c"]
    assert server.present == ["a", "c"]
    assert server.lost == {"b": "b: closed its connection"}
    server.drop("c", "silent for 30 s")
    server.release("y")
    clients["a"].wait("y")
    assert server.lost["c"] == "silent for 30 s"
    with pytest.raises(BarrierError, match="server: closed"):
        clients["c"].wait("y")
    del clients["a"]
    with pytest.raises(BarrierError, match="a: closed"):
        server.gather("z")


LAYOUT = PayloadLayout([("a", 5), ("b", 0), ("c", 7), ("d", 1)], chunk_bytes=16)


@given(st.lists(st.booleans(), min_size=4, max_size=4))
def test_the_loss_of_each_tensor_is_that_of_its_elements(flags):
    received = np.array(flags)
    missing = ~LAYOUT.element_mask(received)
    expected = [missing[:5].mean(), 0, missing[5:12].mean(), missing[12:].mean()]
    np.testing.assert_allclose(logs.tensor_loss(LAYOUT, received), expected)


def test_deviation_of_a_zero_filled_gradient():
    reference = np.array([3.0, 4.0, 0.0, 0.0], dtype=np.float32)
    deviation = logs.deviation(np.array([3, 0, 0, 0], dtype=np.float32), reference)
    expected = {"relative_error": 0.8, "cosine": 0.6, "norm_ratio": 0.6}
    assert deviation == pytest.approx(expected)
    same = logs.deviation(reference, reference)
    assert (same["relative_error"], same["cosine"]) == (0, pytest.approx(1))


def test_deviations_without_a_direction_are_none_not_a_number_made_up():
    zero, one = np.zeros(3, dtype=np.float32), np.ones(3, dtype=np.float32)
    assert logs.deviation(zero, zero) == {"relative_error": 0.0, "cosine": None, "norm_ratio": None}
    assert logs.deviation(one, zero)["relative_error"] is None
    assert logs.deviation(zero, one) == {"relative_error": 1.0, "cosine": None, "norm_ratio": 0.0}
    assert logs.deviation(one * np.float32("nan"), one)["relative_error"] is None


def test_divergence_of_replicas():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=300_000).astype(np.float32)
    assert logs.divergence([weights, weights.copy(), weights.copy()]) == 0
    one, two = np.array([1, 1], dtype=np.float32), np.array([1, 3], dtype=np.float32)
    # Mean (1, 2); each is 1 away from it.
    assert logs.divergence([one, two]) == pytest.approx(1 / 5**0.5)


def test_what_a_child_puts_aside_its_parent_sees():
    vectors = SharedVectors(["worker-1", "worker-2"], 1000)
    assert not vectors.gradients["worker-1"].any()

    def work():
        vectors.gradients["worker-1"][:] = 7

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert (vectors.gradients["worker-1"] == 7).all()
    assert not vectors.gradients["worker-2"].any()
    assert not vectors.updates["worker-1"].any()
