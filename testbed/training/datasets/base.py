"""The interface of data sets: stored examples that become tensors batch by batch.

Arrays stay as they are stored (bytes for images and text) and are not modified, so that processes
forked after loading share one copy. Torch is imported when the first batch is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from testbed.shared.section import Section
from testbed.shared.yaml_input import InputError
from testbed.training.tasks import CLASSIFICATION, Chosen, Examples, Task

if TYPE_CHECKING:
    from torch import Tensor

TEST_SHARE = 0.2
Progress = Any  # called with (name of the work, bytes or examples done, total)


class Images:
    """Pixels (N, channels, height, width), normalised when a batch is taken.

    Args:
        stored: uint8 or float32, in any scale.
        mean, std: of each channel in that scale, or one for all.
    """

    def __init__(
        self, stored: NDArray[Any], mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)
    ) -> None:
        self.stored = stored
        self._mean, self._std = tuple(mean), tuple(std)

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, chosen: Chosen) -> Tensor:
        """float32, (examples, channels, height, width)."""
        import torch

        pixels = torch.from_numpy(self.stored[chosen].astype(np.float32))
        if len(self._mean) == 1:
            return (pixels - self._mean[0]) / self._std[0]
        shape = (len(self._mean), 1, 1)
        return (pixels - torch.tensor(self._mean).view(shape)) / torch.tensor(self._std).view(shape)


class Numbers:
    """Whole numbers, such as labels (N,) or token sequences (N, tokens), returned as int64."""

    def __init__(self, stored: NDArray[Any]) -> None:
        self.stored = stored

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, chosen: Chosen) -> Tensor:
        """int64, the stored shape."""
        import torch

        return torch.from_numpy(self.stored[chosen].astype(np.int64))


class Windows:
    """Sequences of `length` tokens out of one long text.

    Args:
        text: uint8, one token each.
        starts: where each sequence begins.
        shift: 0 for a model's inputs, 1 for the next tokens, which it predicts.
    """

    def __init__(
        self, text: NDArray[np.uint8], starts: NDArray[np.int64], length: int, shift: int
    ) -> None:
        self.text, self.starts = text, starts
        self._offsets = np.arange(shift, shift + length)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, chosen: Chosen) -> Tensor:
        """int64, (sequences, tokens)."""
        import torch

        return torch.from_numpy(
            self.text[self.starts[chosen][:, None] + self._offsets].astype(np.int64)
        )


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A training and a test part.

    Args:
        task: the learning task.
        classes: kinds of labels, or the size of the vocabulary.
        input_shape: of one example: (channels, height, width), or (tokens,).
        train_inputs, train_labels, test_inputs, test_labels: give a tensor for indices.
        groups: for each training example its class, or the package that a text is from; splits
            that are not identically distributed use it; shape (N,).
        facts: recorded in the run directory: sizes, versions, and `sha256` of the data.
    """

    task: Task
    classes: int
    input_shape: tuple[int, ...]
    train_inputs: Examples
    train_labels: Examples
    test_inputs: Examples
    test_labels: Examples
    groups: NDArray[np.int64]
    facts: dict[str, Any]


class DatasetParameters(Section):
    """A data set's keys in an experiment; one subclass per data set, with its `name`."""

    name: Any
    inputs: ClassVar[str | None] = "images"  # None: known only after loading

    def of_run(self, seed: int) -> Self:
        """The parameters for a run with this seed: these, unless a key says otherwise."""
        return self

    def load(self, folder: Path | None) -> Dataset:
        """Read or make the data set.

        Args:
            folder: the folder of the experiment's YAML file, for relative paths.

        Raises:
            InputError: one line that says what is missing or wrong.
        """
        raise NotImplementedError

    def train_count(self) -> int | None:
        """The number of training examples, where it is known without loading."""
        return None

    def prepare(self, folder: Path | None, progress: Progress) -> None:
        """Fetch or make what takes long, before the lab is built; the result is cached.

        Raises:
            InputError: as `load` does.
        """


def images_dataset(
    *,
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    classes: int,
    source: str,
    facts: dict[str, Any],
) -> Dataset:
    """A classification data set of stored images, normalised by the training part.

    Each channel has mean 0 and standard deviation 1 over the training part.

    Args:
        train, test: images (N, channels, height, width) and labels (N,).
        classes: labels are 0 to classes - 1.
        source: its name in error messages.
        facts: facts to which this adds.

    Raises:
        InputError: an empty part, or a label out of range; names the first one.
    """
    for part, (images, labels) in (("training", train), ("test", test)):
        if len(images) == 0 or len(images) != len(labels):
            raise InputError(f"{source}: {len(images)} images and {len(labels)} labels for {part}")
        check_labels(labels, classes, f"{source}, {part} part")
    mean, std = _channel_statistics(train[0])
    return Dataset(
        task=CLASSIFICATION,
        classes=classes,
        input_shape=tuple(train[0].shape[1:]),
        train_inputs=Images(train[0], mean, std),
        train_labels=Numbers(train[1]),
        test_inputs=Images(test[0], mean, std),
        test_labels=Numbers(test[1]),
        groups=train[1].astype(np.int64),
        facts={
            "train_examples": len(train[0]),
            "test_examples": len(test[0]),
            "classes": classes,
            "input_shape": list(train[0].shape[1:]),
            "mean": mean,
            "std": std,
            "sha256": digest(*train, *test),
            **facts,
        },
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


def _channel_statistics(images: NDArray[Any]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, rounded to float32."""
    means, deviations = [], []
    for channel in range(images.shape[1]):
        pixels = images[:, channel]
        mean = float(np.mean(pixels, dtype=np.float64))
        squares = sum(float(np.sum((part - mean) ** 2)) for part in np.array_split(pixels, 64))
        deviation = (squares / (pixels.size - 1)) ** 0.5
        means.append(float(np.float32(mean)))
        deviations.append(float(np.float32(deviation)) or 1.0)
    return means, deviations
