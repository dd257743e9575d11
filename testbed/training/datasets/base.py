"""The interface of data sets: stored examples that become tensors batch by batch.

Arrays stay as they are stored, so that processes forked after loading share one copy. Torch is
imported when the first batch is made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from testbed.shared.problems import Section
from testbed.shared.yaml_input import InputError
from testbed.training.datasets.packages import Package

if TYPE_CHECKING:
    from torch import Tensor, nn

TEST_SHARE = 0.2
VOCABULARY_OF_WORDS = 8192  # numbers of words that inputs of words have; 0 stands for none
_EVALUATED_AT_ONCE = 32  # examples; bounds a worker's memory, and changes no answer
Chosen = NDArray[np.int64] | slice
Progress = Any  # called with (name of the work, bytes or examples done, total)


@dataclass(frozen=True)
class Examples:
    """Inputs or labels of a part; `take` makes a tensor of some of them."""

    count: int
    take: Callable[[Chosen], Tensor]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, chosen: Chosen) -> Tensor:
        return self.take(chosen)

    def only(self, indices: NDArray[np.int64]) -> Examples:
        return Examples(len(indices), lambda chosen: self.take(indices[chosen]))


def images(
    stored: NDArray[Any], mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)
) -> Examples:
    """Pixels as float32 (N, channels, height, width), normalised when a batch is taken."""

    def take(chosen: Chosen) -> Tensor:
        import torch

        pixels = torch.from_numpy(stored[chosen].astype(np.float32))
        shape = (len(mean), 1, 1)
        return (pixels - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)

    return Examples(len(stored), take)


def numbers(stored: NDArray[Any]) -> Examples:
    """Whole numbers, such as labels (N,) or token sequences (N, tokens), as int64."""

    def take(chosen: Chosen) -> Tensor:
        import torch

        return torch.from_numpy(stored[chosen].astype(np.int64))

    return Examples(len(stored), take)


@dataclass(frozen=True)
class Task:
    """A kind of learning; `metric` is what an evaluation gives, and its key in event logs."""

    inputs: Literal["images", "tokens", "words"]
    metric: Literal["accuracy", "perplexity"]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy in nats, per example or per token."""
        from torch.nn.functional import cross_entropy

        if labels.dim() > 1:
            return cross_entropy(logits.flatten(0, -2), labels.flatten())
        return cross_entropy(logits, labels)

    def evaluate(self, model: nn.Module, inputs: Examples, labels: Examples) -> float:
        """Compute the metric: a share from 0 to 1, or exp(mean cross entropy), from 1 to inf."""
        import torch

        device = next(model.parameters()).device
        right, entropy, count = 0, 0.0, 0
        training = [module for module in model.modules() if module.training]
        model.eval()
        with torch.no_grad():
            for start in range(0, len(inputs), _EVALUATED_AT_ONCE):
                part = slice(start, start + _EVALUATED_AT_ONCE)
                expected = labels[part].to(device)
                logits = model(inputs[part].to(device))
                if self.metric == "accuracy":
                    right += int((logits.argmax(dim=-1) == expected).sum())
                else:
                    entropy += float(self.loss(logits, expected)) * expected.numel()
                count += expected.numel()
        for module in training:  # and no other, which its maker has frozen
            module.training = True
        if self.metric == "accuracy":
            return right / count
        try:
            return math.exp(entropy / count)
        except OverflowError:
            return math.inf


CLASSIFICATION = Task("images", "accuracy")
OF_WORDS = Task("words", "accuracy")
LANGUAGE_MODELLING = Task("tokens", "perplexity")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A training and a test part.

    Args:
        classes: kinds of labels, or the size of the vocabulary.
        input_shape: of one example: (channels, height, width), or (tokens,).
        groups: each training example's class, or the package that a text is from, for uneven
            splits; shape (N,).
        origin: for `facts`: its name, versions, and `sha256` of the data.
        validation: inputs and labels of a part of its own, which is in neither of the others.
    """

    task: Task
    classes: int
    input_shape: tuple[int, ...]
    train_inputs: Examples
    train_labels: Examples
    test_inputs: Examples
    test_labels: Examples
    groups: NDArray[np.int64]
    origin: dict[str, Any]
    validation: tuple[Examples, Examples] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "train_examples": len(self.train_inputs),
            "test_examples": len(self.test_inputs),
            "classes": self.classes,
            "input_shape": list(self.input_shape),
            **self.origin,
        }


class DatasetParameters(Section):
    """A data set's keys in an experiment; one subclass per data set, with its `name`."""

    name: Any
    inputs: ClassVar[str | None] = "images"  # None: known only after loading
    package: ClassVar[Package | None] = None  # that `load` reads

    def of_run(self, seed: int) -> Self:
        """The parameters for a run with this seed: these, unless a key says otherwise."""
        return self

    def load(self, folder: Path | None) -> Dataset:
        """Read or make the data set; paths are relative to the `folder` of the YAML. InputError."""
        raise NotImplementedError

    def shape(self) -> tuple[int, tuple[int, ...]] | None:
        """The number of classes and an input's shape, where they are known without loading."""
        return None

    def prepare(self, folder: Path | None, progress: Progress) -> None:
        """Fetch or make what takes long, before the lab is built; it is cached. InputError."""


def images_dataset(
    *,
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    classes: int,
    source: str,
    origin: dict[str, Any],
    validation: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> Dataset:
    """Classification of stored images (N, channels, height, width) with labels from 0.

    Each channel has mean 0 and standard deviation 1 over the training part. InputError names the
    `source`, and the first label out of range.
    """
    for part, (pixels, labels) in (("training", train), ("test", test)):
        if len(pixels) == 0 or len(pixels) != len(labels):
            raise InputError(f"{source}: {len(pixels)} images and {len(labels)} labels for {part}")
        check_labels(labels, classes, f"{source}, {part} part")
    mean, std = _channel_statistics(train[0])

    def examples(part: tuple[NDArray[Any], NDArray[Any]]) -> tuple[Examples, Examples]:
        return images(part[0], mean, std), numbers(part[1])

    train_inputs, train_labels = examples(train)
    test_inputs, test_labels = examples(test)
    return Dataset(
        task=CLASSIFICATION,
        classes=classes,
        input_shape=tuple(train[0].shape[1:]),
        train_inputs=train_inputs,
        train_labels=train_labels,
        test_inputs=test_inputs,
        test_labels=test_labels,
        groups=train[1].astype(np.int64),
        origin={
            "mean": mean,
            "std": std,
            "sha256": digest(*train, *test, *(validation or ())),
            **origin,
        },
        validation=validation and examples(validation),
    )


def check_labels(labels: NDArray[Any], classes: int, source: str) -> None:
    """Raise InputError that names the first label which is not in 0 to classes - 1."""
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{source}: labels are {labels.dtype}; valid: whole numbers")
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(bad):
        first = int(bad[0])
        place = np.unravel_index(first, labels.shape)
        raise InputError(
            f"{source}: the label of example {int(place[0])} is {labels[place]}; "
            f"valid: 0 to {classes - 1}"
        )


def digest(*arrays: NDArray[Any]) -> str:
    """SHA-256 of the type, shape and content of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def split_by_seed(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test indices of data without published parts: always the same 80/20 split."""
    order = np.random.default_rng(0).permutation(count)
    tests = int(count * TEST_SHARE)
    return order[tests:], order[:tests]


def _channel_statistics(stored: NDArray[Any]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, rounded to float32."""
    means, deviations = [], []
    for channel in range(stored.shape[1]):
        pixels = stored[:, channel]
        mean = float(np.mean(pixels, dtype=np.float64))
        squares = sum(float(np.sum((part - mean) ** 2)) for part in np.array_split(pixels, 64))
        deviation = (squares / (pixels.size - 1)) ** 0.5
        means.append(float(np.float32(mean)))
        deviations.append(float(np.float32(deviation)) or 1.0)
    return means, deviations
