"""The validation part: training examples that no worker trains on, for choosing settings.

Choosing by the test part would make its numbers too good for what was chosen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from testbed.training.datasets.base import TEST_SHARE, Dataset
from testbed.training.tasks import Chosen, Examples

if TYPE_CHECKING:
    from torch import Tensor


class _Selected:
    """Some examples of a part, by their indices there."""

    def __init__(self, examples: Examples, indices: NDArray[np.int64]) -> None:
        self._examples, self._indices = examples, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, chosen: Chosen) -> Tensor:
        return self._examples[self._indices[chosen]]


def most_held_out(count: int) -> int:
    """How many of so many training examples are the validation part, at the most."""
    return int(count * TEST_SHARE)


def in_place_of_test(dataset: Dataset, seed: int) -> Dataset:
    """The data set with examples of its training part, which leave it, as its test part."""
    order = np.random.default_rng([seed, 5]).permutation(len(dataset.train_labels))
    border = min(most_held_out(len(order)), len(dataset.test_labels))
    tests, train = order[:border], order[border:]
    return replace(
        dataset,
        train_inputs=_Selected(dataset.train_inputs, train),
        train_labels=_Selected(dataset.train_labels, train),
        test_inputs=_Selected(dataset.train_inputs, tests),
        test_labels=_Selected(dataset.train_labels, tests),
        groups=dataset.groups[train],
        facts={
            **dataset.facts,
            "train_examples": len(train),
            "test_examples": len(tests),
            "evaluated_on": "validation",
        },
    )
