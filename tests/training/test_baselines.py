"""Baselines are right, and computed once."""

from dataclasses import replace

import numpy as np
import pytest

from testbed.training import datasets
from testbed.training.datasets import baselines, splits
from testbed.training.datasets.base import LANGUAGE_MODELLING, OF_WORDS, Dataset, digest, numbers
from testbed.training.state import ModelAndData

pytestmark = pytest.mark.usefixtures("own_cache")


def made(task, train, test, classes):
    arrays = [np.array(part) for part in (*train, *test)]
    return Dataset(
        task=task,
        classes=classes,
        input_shape=arrays[0].shape[1:],
        train_inputs=numbers(arrays[0]),
        train_labels=numbers(arrays[1]),
        test_inputs=numbers(arrays[2]),
        test_labels=numbers(arrays[3]),
        groups=np.zeros(len(arrays[0]), dtype=np.int64),
        origin={"sha256": digest(*arrays)},
    )


def test_bigrams_are_shares_of_what_followed_in_training():
    text = [0, 1, 0, 1, 0, 2, 0, 1, 0]

    def share(first, second):
        train = [text[:-1]], [text[1:]]
        return 1 / (baselines.of(made(LANGUAGE_MODELLING, train, ([[first]], [[second]]), 4)) or 0)

    # After 0 came 1 three times and 2 once; a fifth is as frequent as each is at all, of 8 + 4.
    of_zero = [share(0, second) for second in range(4)]
    expected = [(0 + 5 / 12) / 5, (3 + 4 / 12) / 5, (1 + 2 / 12) / 5, (0 + 1 / 12) / 5]
    assert of_zero == pytest.approx(expected)
    for first in range(4):  # also of what was never there
        assert sum(share(first, second) for second in range(4)) == pytest.approx(1)
    two = made(LANGUAGE_MODELLING, ([text[:-1]], [text[1:]]), ([[0, 0]], [[1, 2]]), 4)
    assert baselines.of(two) == pytest.approx((of_zero[1] * of_zero[2]) ** -0.5)


def test_a_linear_model_tells_verses_by_their_words_and_nothing_without_them():
    train = [[2, 5, 0], [3, 5, 0], [2, 5, 7], [3, 5, 7]], [0, 1, 0, 1]
    # The order does not matter, and a word of a known book decides.
    assert baselines.of(made(OF_WORDS, train, ([[7, 3, 5], [5, 2, 0]], [1, 0]), 2)) == 1
    unknown = baselines.of(made(OF_WORDS, train, ([[7, 0, 0], [7, 0, 0]], [0, 1]), 2))
    assert unknown == 0.5


def test_a_linear_model_of_digits_is_between_chance_and_all():
    """scikit-learn's logistic regression has 96 to 97 % there."""
    assert 0.95 < (baselines.of(datasets.load("digits")) or 0) < 0.98


def test_it_is_computed_once_for_each_part_and_goes_into_training_json(monkeypatch):
    computed = []

    def linear(dataset):
        computed.append(dataset)
        return 0.1 * len(computed)

    monkeypatch.setattr(baselines, "_linear", linear)
    digits = datasets.load("digits")
    training = {"model": "mlp", "dataset": "digits", "batch_size": 8}

    def facts(**more):
        return ModelAndData({"seed": 1, "training": training | more}).facts(2)["baseline"]

    assert baselines.of(digits) == facts() == baselines.of(datasets.load("digits")) == 0.1
    assert facts(evaluate_on="validation") == baselines.of(splits.validating(digits, 1)) == 0.2
    assert baselines.of(splits.validating(digits, 2)) == pytest.approx(0.3)
    assert facts(pace={"kind": "payload-only"}) is None
    other = replace(digits, origin={**digits.origin, "sha256": "another"})
    assert baselines.of(other) == 0.4


def test_without_a_place_to_keep_it_it_is_computed(monkeypatch):
    monkeypatch.setattr(baselines, "_linear", lambda dataset: 0.7)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert baselines.of(datasets.load("digits")) == 0.7


def test_data_that_nothing_identifies_or_a_huge_linear_model_have_no_baseline():
    digits = datasets.load("digits")
    assert baselines.of(replace(digits, origin={})) is None
    assert baselines.of(replace(digits, input_shape=(3, 224, 224), classes=1000)) is None
