"""Data sets: split into training and test parts, and the workers' seeded shares.

To add one: a file here with `Parameters`, a `DatasetParameters` whose `load` gives a `Dataset`, and
a line in `DATASETS`; or a file of your own, `dataset: ./mine.py`, with a function `load` that
returns four arrays (see `OwnFunction`). Imports numpy, pydantic and `testbed.shared`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, JsonValue, TypeAdapter

from testbed.shared import own_code
from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry
from testbed.shared.yaml_input import InputError
from testbed.training.datasets import bible, stdlib_text
from testbed.training.datasets.base import (
    LANGUAGE_MODELLING,
    Dataset,
    DatasetParameters,
    check_labels,
    digest,
    images_dataset,
    numbers,
)
from testbed.training.datasets.images import Cifar10, Digits, FashionMnist, Glyphs

DATASETS: Registry[Any] = Registry(
    "data set",
    {
        "digits": Digits,
        "glyphs": Glyphs,
        "fashion-mnist": FashionMnist,
        "stdlib-text": stdlib_text.Parameters,
        "bible": bible.Bible,
        "verses": bible.Verses,
        "cifar10": Cifar10,
    },
    own="load",
)


class OwnFunction(DatasetParameters):
    """A function that returns (train inputs, train labels, test inputs, test labels).

    Arrays or CPU tensors. Images: inputs (N, channels, height, width) in any scale, labels (N,).
    Text: token numbers (N, tokens), and as labels the next token of each.
    """

    name: str
    inputs = None
    arguments: dict[str, JsonValue] = Field(
        default_factory=dict, description="given to the callable by keyword"
    )
    classes: int | None = Field(default=None, ge=2, description="default: largest label + 1")

    def load(self, folder: Path | None) -> Dataset:
        make = own_code.load(
            own_code.located(self.name), axis="data set", default="load", base=None
        )
        with own_code.explained(own_code.split(self.name)[0]):
            returned = make(**self.arguments)
        if not isinstance(returned, tuple) or len(returned) != 4:
            raise InputError(
                f"{self.name}: returned {type(returned).__name__}; valid: a tuple of train inputs, "
                "train labels, test inputs, test labels"
            )
        arrays = [self._array(value) for value in returned]
        train_inputs, train_labels, test_inputs, test_labels = arrays
        classes = self.classes or 1 + max(
            int(labels.max(initial=1)) for labels in (train_labels, test_labels)
        )
        origin = {"name": self.name, "arguments": self.arguments}
        if train_labels.ndim == 1 and train_inputs.ndim == 4:
            return images_dataset(
                train=(train_inputs, train_labels),
                test=(test_inputs, test_labels),
                classes=classes,
                source=self.name,
                origin=origin,
            )
        self._check_sequences(train_inputs, train_labels, "training", classes)
        self._check_sequences(test_inputs, test_labels, "test", classes)
        return Dataset(
            task=LANGUAGE_MODELLING,
            classes=classes,
            input_shape=(train_inputs.shape[1],),
            train_inputs=numbers(train_inputs),
            train_labels=numbers(train_labels),
            test_inputs=numbers(test_inputs),
            test_labels=numbers(test_labels),
            groups=train_labels[:, 0].astype(np.int64),
            origin={"sha256": digest(*arrays), **origin},
        )

    def _array(self, value: Any) -> NDArray[Any]:
        array = np.asarray(value)
        if array.dtype.kind == "f":
            if not np.isfinite(array).all():
                raise InputError(f"{self.name}: its inputs hold NaN or infinity")
            return array.astype(np.float32)
        if array.dtype.kind not in "iu":
            raise InputError(f"{self.name}: returned {array.dtype}; valid: arrays of numbers")
        return array

    def _check_sequences(
        self, inputs: NDArray[Any], labels: NDArray[Any], part: str, classes: int
    ) -> None:
        if inputs.ndim != 2 or inputs.shape != labels.shape or not len(inputs):
            raise InputError(
                f"{self.name}: {part} inputs have shape {inputs.shape} and labels {labels.shape}; "
                "valid: (N, channels, height, width) with (N,), or both (N, tokens)"
            )
        for values in (inputs, labels):
            check_labels(values, classes, f"{self.name}, {part} part")


def _section(name: str) -> type[DatasetParameters]:
    """The keys of a data set in YAML: `OwnFunction` where own code is a plain function."""
    if name in DATASETS:
        return cast(type[DatasetParameters], DATASETS.entry(name))
    own = own_code.load(name, axis="data set", default="load", base=None)
    written_like_ours = isinstance(own, type) and issubclass(own, DatasetParameters)
    return own if written_like_ours else OwnFunction


AnyDataset = Annotated[
    DatasetParameters,
    OneOf(
        DATASETS,
        key="name",
        base=DatasetParameters,
        model=_section,
        own=OwnFunction,
        by_name=True,
    ),
]
DEFAULT = Digits()
_ANY: TypeAdapter[DatasetParameters] = TypeAdapter(AnyDataset)


def parameters(section: Any) -> DatasetParameters:
    return _ANY.validate_python(section)


def load(section: Any, folder: Path | None = None, seed: int = 0) -> Dataset:
    """The data set of a name, or of a section of a `config.json`; InputError, in one line.

    `folder` is that of the experiment's YAML file, `seed` the run's, for data that differ with it.
    """
    return parameters(section).of_run(seed).load(folder)


__all__ = [
    "DATASETS",
    "DEFAULT",
    "AnyDataset",
    "Dataset",
    "DatasetParameters",
    "Glyphs",
    "load",
    "parameters",
]
