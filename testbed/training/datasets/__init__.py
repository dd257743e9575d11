"""Data sets by name, split into training and test parts, and the workers' seeded shares.

To add one: a file beside this one with `Parameters`, a subclass of `DatasetParameters` whose
`load` gives a `Dataset`; then its name in `_BY_NAME` and in `AnyDataset`. A user needs neither:
`module:callable` names a function that returns the four arrays (see `user`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Tag, TypeAdapter

from testbed.training import user_code
from testbed.training.datasets import cifar10, digits, glyphs, imagefolder, stdlib_text, user
from testbed.training.datasets.base import Dataset, DatasetParameters
from testbed.training.datasets.splits import (
    AnySplit,
    Dirichlet,
    Equal,
    batches,
    require_batches,
    share,
    shares,
)

_BY_NAME = ("digits", "glyphs", "stdlib-text", "cifar10", "imagefolder")
_USER = "module:callable"


def _named(section: Any) -> Any:
    """A name alone stands for that data set with its defaults."""
    return {"name": section} if isinstance(section, str) else section


def _known(section: Any) -> Any:
    name = section.get("name") if isinstance(section, dict) else getattr(section, "name", None)
    if not isinstance(name, str) or (name not in _BY_NAME and not user_code.is_reference(name)):
        raise ValueError(f"{name!r}: unknown data set; valid: {', '.join(_BY_NAME)}, {_USER}")
    return section


def _tag(section: Any) -> str:
    name = section["name"] if isinstance(section, dict) else section.name
    return name if name in _BY_NAME else _USER


AnyDataset = Annotated[
    Annotated[
        Annotated[digits.Parameters, Tag("digits")]
        | Annotated[glyphs.Parameters, Tag("glyphs")]
        | Annotated[stdlib_text.Parameters, Tag("stdlib-text")]
        | Annotated[cifar10.Parameters, Tag("cifar10")]
        | Annotated[imagefolder.Parameters, Tag("imagefolder")]
        | Annotated[user.Parameters, Tag(_USER)],
        Discriminator(_tag),
    ],
    BeforeValidator(_known),
    BeforeValidator(_named),
]
DEFAULT = digits.Parameters()
_ANY: TypeAdapter[DatasetParameters] = TypeAdapter(AnyDataset)


def parameters(section: Any) -> DatasetParameters:
    """A data set's parameters from its section of an experiment or a `config.json`.

    Raises:
        ValueError: not valid (pydantic's ValidationError).
    """
    return _ANY.validate_python(section)


def load(section: Any, folder: Path | None = None) -> Dataset:
    """The data set of a name, or of a section of a `config.json`.

    Raises:
        InputError: it is missing or wrong: one line.
    """
    return parameters(section).load(folder)


def rounds_per_epoch(dataset: Dataset, workers: int, batch_size: int) -> int:
    """Rounds in which the smallest of equal shares is seen once."""
    return max(1, len(dataset.train_labels) // workers // batch_size)


__all__ = [
    "DEFAULT",
    "AnyDataset",
    "AnySplit",
    "Dataset",
    "DatasetParameters",
    "Dirichlet",
    "Equal",
    "batches",
    "load",
    "parameters",
    "require_batches",
    "rounds_per_epoch",
    "share",
    "shares",
]
