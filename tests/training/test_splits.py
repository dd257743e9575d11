"""Workers train on equal or Dirichlet shares."""

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.shared.yaml_input import InputError
from testbed.training import datasets, prerequisites
from testbed.training.datasets import splits
from testbed.training.datasets.images import Glyphs
from testbed.training.datasets.splits import Dirichlet, Equal, shares
from testbed.training.state import ModelAndData
from tests.training.single_process import need_of

SPLITS = st.one_of(st.just(Equal()), st.floats(1e-3, 1e3).map(lambda alpha: Dirichlet(alpha=alpha)))


@settings(max_examples=60, deadline=None)
@given(
    split=SPLITS,
    groups=st.lists(st.integers(0, 5), min_size=1, max_size=300),
    workers=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)
def test_every_example_belongs_to_exactly_one_worker(split, groups, workers, seed):
    groups = np.array(groups)
    of_workers = shares(split, groups, workers, seed)
    assert len(of_workers) == workers
    assert sorted(np.concatenate(of_workers)) == list(range(len(groups)))
    again = shares(split, groups, workers, seed)
    assert all(np.array_equal(one, two) for one, two in zip(of_workers, again, strict=True))


@given(count=st.integers(1, 500), workers=st.integers(1, 9), seed=st.integers(0, 1000))
def test_equal_shares_differ_by_one_at_most_and_are_as_they_were(count, workers, seed):
    of_workers = shares(Equal(), np.zeros(count, dtype=np.int64), workers, seed)
    sizes = [len(indices) for indices in of_workers]
    assert max(sizes) - min(sizes) <= 1
    order = np.random.default_rng([seed, 1]).permutation(count)
    for rank, indices in enumerate(of_workers):
        assert np.array_equal(indices, order[rank::workers])


def unevenness(alpha):
    """Mean over workers of the share of their most frequent class, of 10 equally frequent ones."""
    groups = np.repeat(np.arange(10), 500)
    means = []
    for seed in range(5):
        of_workers = shares(Dirichlet(alpha=alpha), groups, 4, seed)
        tops = [
            np.bincount(groups[indices]).max() / len(indices)
            for indices in of_workers
            if len(indices)
        ]
        means.append(np.mean(tops))
    return np.mean(means)


def test_a_small_alpha_gives_a_worker_few_classes_and_a_large_one_all():
    few, some, all_of_them = (unevenness(alpha) for alpha in (0.05, 1.0, 1000.0))
    assert few > 0.3 > some > all_of_them
    assert all_of_them < 0.12


TRAINING = {"model": "mlp", "dataset": "digits", "batch_size": 8}


def test_a_run_s_shares_follow_its_configuration():
    uneven_training = {**TRAINING, "split": {"name": "dirichlet", "alpha": 0.5}}
    uneven = ModelAndData({"seed": 2, "training": uneven_training}).shares(3)
    even = ModelAndData({"seed": 2, "training": TRAINING}).shares(3)
    assert [len(indices) for indices in even] == [480, 479, 479]
    assert max(map(len, uneven)) - min(map(len, uneven)) > 10
    other = ModelAndData({"seed": 3, "training": uneven_training}).shares(3)
    assert not np.array_equal(uneven[0], other[0])
    with pytest.raises(InputError, match=r"larger than the 479 .* or fewer workers"):
        ModelAndData({"seed": 2, "training": {**TRAINING, "batch_size": 480}}).shares(3)


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
    assert len(splits.validating(whole, 1).test_labels) == 50


def test_seeds_hold_out_other_examples():
    whole = datasets.load("digits")
    one, same, two = (splits.validating(whole, seed) for seed in (1, 1, 2))
    assert rows(one.test_inputs) == rows(same.test_inputs) != rows(two.test_inputs)


def test_without_the_key_all_is_trained_on_and_the_test_part_evaluates():
    run = ModelAndData({"seed": 1, "training": TRAINING})
    assert run.facts(3)["dataset"] == datasets.load("digits").facts


@pytest.mark.parametrize(
    ("keys", "most"),
    [
        ({}, 479),
        ({"evaluate_on": "validation"}, 383),
        ({"split": {"name": "dirichlet", "alpha": 0.1}}, 216),
    ],
)
def test_a_batch_must_fit_the_smallest_share(keys, most):
    """Before a lab is built."""

    def prepare(batch_size):
        need = need_of("mlp", "digits", batch_size=batch_size, **keys)
        prerequisites.prepare([need], lambda *_: None)

    prepare(most)
    line = rf"batch_size: {most + 1}: larger than the {most} .*; valid: 1 to {most}, or"
    with pytest.raises(InputError, match=line):
        prepare(most + 1)


def test_large_data_sets_are_loaded_one_at_a_time(monkeypatch):
    loaded: list[weakref.ref[datasets.Dataset]] = []
    load = datasets.load

    def of_digits(self, _):
        assert all(earlier() is None for earlier in loaded)
        dataset = load("digits")
        loaded.append(weakref.ref(dataset))
        return dataset

    monkeypatch.setattr(Glyphs, "prepare", lambda *_: None)
    monkeypatch.setattr(Glyphs, "load", of_digits)

    need = need_of("mlp", {"name": "glyphs", "seed": "run", "size": 100})
    prerequisites.prepare([need._replace(seed=seed) for seed in (1, 2, 2)], lambda *_: None)
    assert len(loaded) == 2
