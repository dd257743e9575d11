"""A worker takes exact gradients in, gives exact updates out, and takes updates back."""

import numpy as np
import pytest
import torch

from testbed.training import datasets, models
from testbed.training.datasets import splits
from testbed.training.state import Learner, PayloadOnly, Replica

SGD = {"name": "sgd", "learning_rate": 0.5, "momentum": 0.0, "weight_decay": 0.0}
ADAM = {"name": "adam", "learning_rate": 0.01, "momentum": 0.0, "weight_decay": 0.1}


def replica(optimiser=SGD, model="small-cnn", dataset="digits", seed=3):
    data = datasets.load(dataset)
    built = models.build(model, seed, classes=data.classes, input_shape=data.input_shape)
    indices = np.arange(200)
    batches = splits.batches(indices, 8, seed, 0)
    return Replica(built, dataset=data, batches=batches, optimiser=optimiser)


def size(learner):
    return sum(tensor.numel() for tensor in learner._trained)


def weights(learner):
    flat = np.empty(size(learner), dtype=np.float32)
    learner.weights(flat)
    return flat


def test_replicas_of_one_digest_have_the_same_weights_and_buffers():
    first, second = replica(), replica()
    assert first.digest() == second.digest() != replica(seed=4).digest()
    second.apply(np.ones(size(second), dtype=np.float32), 1e-6)
    assert first.digest() != second.digest()
    for learner in (first, second := replica()):
        learner._model.register_buffer("mean", torch.zeros(1), persistent=False)
    assert first.digest() == second.digest()
    second._model.mean += 1
    assert first.digest() != second.digest()


def test_an_evaluation_leaves_frozen_layers_frozen():
    learner = replica()
    learner._model[0].eval()
    learner.evaluate()
    assert not learner._model[0].training and learner._model[1].training


def test_a_flat_update_is_plain_sgd_at_the_given_rate():
    learner = replica()
    before = weights(learner)
    update = np.linspace(-1, 1, len(before), dtype=np.float32)
    learner.apply(update, 0.25)
    np.testing.assert_array_equal(weights(learner), before - np.float32(0.25) * update)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    ("optimiser", "model", "dataset"),
    [
        (ADAM, "small-cnn", "digits"),
        (SGD | {"momentum": 0.9}, "small-cnn", "digits"),
        (SGD | {"momentum": 0.9}, "gpt2-tiny", "stdlib-text"),
    ],
    ids=["adam", "momentum", "momentum-and-dropout"],
)
def test_a_step_that_was_taken_back_leaves_no_trace(optimiser, model, dataset, steps):
    torch.set_num_threads(1)
    one, two = (replica(optimiser, model, dataset) for _ in range(2))
    updates = np.random.default_rng(0).standard_normal((steps + 2, size(one)), dtype=np.float32)
    for update in updates[:steps]:
        one.apply(update, 0.1)
        two.apply(update, 0.1)
    take_back = one.snapshot()
    one.apply(updates[-2], 0.1)
    assert not np.array_equal(weights(one), weights(two))
    take_back()
    np.testing.assert_array_equal(weights(one), weights(two))
    for learner in (one, two):
        learner.apply(updates[-1], 0.05)
        learner.apply(updates[-1], 0.05)  # momentum shows in the second
    np.testing.assert_array_equal(weights(one), weights(two))


def test_payloads_alone_are_numbers_that_are_not_zero_and_need_no_model():
    learner: Learner = PayloadOnly(seed=1)
    into = np.zeros(1000, dtype=np.float32)
    assert learner.gradient(into) is None
    assert np.isfinite(into).all()
    assert np.count_nonzero(into) == 1000
    assert learner.evaluate() is None
