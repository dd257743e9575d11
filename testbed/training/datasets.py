"""Data sets by name, split into training and test parts, and the workers' seeded shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TEST_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Images (float32, N x C x H x W) and class numbers (int64, N), for training and testing."""

    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor


def digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels that ship with scikit-learn, 80/20 split."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = torch.from_numpy(bunch.images[order].astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target[order].astype(np.int64))
    tests = int(len(labels) * TEST_SHARE)
    training = images[tests:]
    images = (images - training.mean()) / training.std()
    return Dataset(
        train_inputs=images[tests:],
        train_labels=labels[tests:],
        test_inputs=images[:tests],
        test_labels=labels[:tests],
    )


DATASETS: dict[str, Callable[[], Dataset]] = {"digits": digits}


def load(name: str) -> Dataset:
    """The data set of a name."""
    return DATASETS[name]()


def share(count: int, rank: int, workers: int, seed: int) -> np.ndarray:
    """Indices of one worker's samples: equal, disjoint, shuffled by the seed."""
    return np.random.default_rng([seed, 1]).permutation(count)[rank::workers]


def rounds_per_epoch(dataset: Dataset, workers: int, batch_size: int) -> int:
    """Rounds in which the smallest share is seen once."""
    return max(1, len(dataset.train_labels) // workers // batch_size)


def batches(indices: np.ndarray, batch_size: int, seed: int, rank: int) -> Iterator[np.ndarray]:
    """Batches of indices for ever, shuffled anew each epoch; a last short batch is left out."""
    generator = np.random.default_rng([seed, 2, rank])
    size = min(batch_size, len(indices))
    while True:
        order = generator.permutation(indices)
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]
