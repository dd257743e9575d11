"""Data sets: split into training and test parts, and the workers' seeded shares.

To add one: a file here with `Parameters`, a `DatasetParameters` whose `load` gives a `Dataset`, and
a line in `DATASETS`; or a file of your own, `dataset: ./mine.py`, with a function `load` that
returns four arrays (see `user`). Imports numpy, pydantic and `testbed.shared`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import TypeAdapter

from testbed.shared import own_code
from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry
from testbed.training.datasets import glyphs, stdlib_text, user
from testbed.training.datasets.base import Dataset, DatasetParameters
from testbed.training.datasets.images import Cifar10, Digits

DATASETS: Registry[Any] = Registry(
    "data set",
    {
        "digits": Digits,
        "glyphs": glyphs.Parameters,
        "stdlib-text": stdlib_text.Parameters,
        "cifar10": Cifar10,
    },
    own="load",
)


def _section(name: str) -> type[DatasetParameters]:
    """The keys of a data set in YAML: `user.Parameters` where own code is a plain function."""
    if name in DATASETS:
        return cast(type[DatasetParameters], DATASETS.entry(name))
    own = own_code.load(name, axis="data set", default="load", base=None)
    written_like_ours = isinstance(own, type) and issubclass(own, DatasetParameters)
    return own if written_like_ours else user.Parameters


AnyDataset = Annotated[
    DatasetParameters,
    OneOf(
        DATASETS,
        key="name",
        base=DatasetParameters,
        model=_section,
        own=user.Parameters,
        by_name=True,
    ),
]
DEFAULT = Digits()
_ANY: TypeAdapter[DatasetParameters] = TypeAdapter(AnyDataset)


def parameters(section: Any) -> DatasetParameters:
    """A data set's parameters from its section of an experiment or a `config.json`; ValueError."""
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
    "load",
    "parameters",
]
