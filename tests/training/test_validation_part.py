"""The validation part: of the training examples, trained on by nobody, never of the test part."""

import numpy as np
import pytest
import torch

from testbed.shared.yaml_input import InputError
from testbed.training import datasets, prerequisites
from testbed.training.model_and_data import ModelAndData
from tests.training.single_process import need_of

TRAINING = {"model": "mlp", "dataset": "digits", "batch_size": 8}


def rows(inputs, indices=slice(None)):
    return {example.numpy().tobytes() for example in inputs[indices]}


def test_it_is_a_fifth_of_the_training_part_at_most_and_nobody_trains_on_it():
    whole = datasets.load("digits")
    config = {"seed": 1, "training": {**TRAINING, "evaluate_on": "validation"}}
    run = ModelAndData(config)
    held_out, left = rows(run.dataset.test_inputs), rows(run.dataset.train_inputs)
    assert len(run.dataset.test_labels) == 287  # of 1438
    assert len(run.dataset.train_labels) == len(run.dataset.groups) == 1438 - 287
    assert not held_out & left
    assert held_out | left == rows(whole.train_inputs)
    assert not held_out & rows(whole.test_inputs)
    shares = np.concatenate(run.shares(3))
    assert sorted(shares) == list(range(1438 - 287))
    labels = run.dataset.train_labels[slice(None)]
    assert torch.equal(labels, torch.from_numpy(run.dataset.groups))
    facts = run.facts(3)["dataset"]
    assert (facts["train_examples"], facts["test_examples"]) == (1151, 287)
    assert facts["evaluated_on"] == "validation"


def test_it_is_as_large_as_the_test_part_where_a_fifth_would_be_more():
    whole = datasets.load({"name": "stdlib-text", "test_sequences": 50})
    assert len(datasets.validation.in_place_of_test(whole, 1).test_labels) == 50


def test_seeds_hold_out_other_examples():
    whole = datasets.load("digits")
    one, same, two = (datasets.validation.in_place_of_test(whole, seed) for seed in (1, 1, 2))
    assert rows(one.test_inputs) == rows(same.test_inputs) != rows(two.test_inputs)


def test_without_the_key_all_is_trained_on_and_the_test_part_evaluates():
    run = ModelAndData({"seed": 1, "training": TRAINING})
    assert run.facts(3)["dataset"] == datasets.load("digits").facts


@pytest.mark.parametrize(("batch_size", "fits"), [(383, True), (384, False)])
def test_a_batch_must_fit_what_is_left(batch_size, fits):
    need = need_of("mlp", "digits", batch_size=batch_size, validates=True)
    if fits:
        prerequisites.check(need)
        return
    with pytest.raises(ValueError, match=r"batch_size: 384: larger than .* 383 examples"):
        prerequisites.check(need)
    config = {"seed": 1, "training": {**TRAINING, "evaluate_on": "validation", "batch_size": 384}}
    with pytest.raises(InputError, match="larger than the 383"):
        ModelAndData(config).shares(3)
