"""Splits the training examples: among workers, and into those that are trained on and validate."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.shared.named_sections import OneOf
from testbed.shared.problems import Section
from testbed.shared.registry import Registry
from testbed.shared.yaml_input import InputError
from testbed.training.datasets.base import TEST_SHARE, Dataset

Indices = NDArray[np.int64]


class Equal(Section):
    """Shares of the same size, at random."""

    name: Literal["equal"] = "equal"


class Dirichlet(Section):
    """Each class is divided among the workers in proportions from a Dirichlet distribution.

    Hsu et al., arXiv 1909.06335, in the form usual since Yurochkin et al., ICML 2019: a small
    `alpha` gives each worker few classes, a large one nearly equal shares of all.
    """

    name: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(gt=0, le=1e6, description="the smaller, the fewer classes each worker has")


SPLITS: Registry[Section] = Registry("split", {"equal": Equal, "dirichlet": Dirichlet})
AnySplit = Annotated[Equal | Dirichlet, OneOf(SPLITS, key="name", base=Section, by_name=True)]


def shares(split: Equal | Dirichlet, groups: Indices, workers: int, seed: int) -> list[Indices]:
    """Indices of each worker's examples, of these groups: disjoint, and together all examples."""
    if isinstance(split, Equal):
        order = np.random.default_rng([seed, 1]).permutation(len(groups))
        return [order[rank::workers] for rank in range(workers)]
    random = np.random.default_rng([seed, 3])
    parts: list[list[Indices]] = [[] for _ in range(workers)]
    for group in np.unique(groups):
        members = random.permutation(np.flatnonzero(groups == group))
        proportions = random.dirichlet(np.full(workers, split.alpha))
        borders = np.round(np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, borders), strict=True):
            part.append(piece)
    return [random.permutation(np.concatenate(part)) for part in parts]


def require_batches(shares: list[Indices], batch_size: int, split: Equal | Dirichlet) -> None:
    for rank, share_of_one in enumerate(shares):
        if len(share_of_one) < batch_size:
            advice = "or a larger alpha" if isinstance(split, Dirichlet) else "or fewer workers"
            raise InputError(
                f"training.batch_size: {batch_size}: larger than the {len(share_of_one)} examples "
                f"that split {split.name!r} gives worker-{rank + 1}; "
                f"valid: 1 to {min(map(len, shares))}, {advice}"
            )


def batches(indices: Indices, batch_size: int, seed: int, rank: int) -> Iterator[Indices]:
    """Yields batches of indices without end, reshuffled each epoch; drops a last short batch."""
    generator = np.random.default_rng([seed, 2, rank])
    size = min(batch_size, len(indices))
    while True:
        order = generator.permutation(indices)
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]


def validating(dataset: Dataset, seed: int) -> Dataset:
    """The data set with its validation part as its test part.

    One without it takes examples of its training part, which leave that.
    """
    origin = {**dataset.origin, "evaluated_on": "validation"}
    if dataset.validation is not None:
        inputs, labels = dataset.validation
        return replace(dataset, test_inputs=inputs, test_labels=labels, origin=origin)
    order = np.random.default_rng([seed, 5]).permutation(len(dataset.train_labels))
    border = min(int(len(order) * TEST_SHARE), len(dataset.test_labels))
    tests, train = order[:border], order[border:]
    return replace(
        dataset,
        train_inputs=dataset.train_inputs.only(train),
        train_labels=dataset.train_labels.only(train),
        test_inputs=dataset.train_inputs.only(tests),
        test_labels=dataset.train_labels.only(tests),
        groups=dataset.groups[train],
        origin=origin,
    )
