"""The data set `glyphs` with a quarter of its pixels, so that a training takes a second or two."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.training import datasets
from testbed.training.datasets.base import Images, Numbers

NAME = f"{__name__}:load"
_SQUARE = 2  # pixels of a side that become one
_Array = NDArray[Any]


@lru_cache(maxsize=1)  # a process trains many times
def load(*, size: int) -> tuple[_Array, _Array, _Array, _Array]:
    """Training images uint8 (N, 1, 16, 16) and labels, test images and labels.

    Args:
        size: images in all; a fifth is for the test.
    """
    whole = datasets.load({"name": "glyphs", "size": size})
    found: list[_Array] = []
    for inputs, labels in (
        (whole.train_inputs, whole.train_labels),
        (whole.test_inputs, whole.test_labels),
    ):
        if not (isinstance(inputs, Images) and isinstance(labels, Numbers)):
            raise TypeError(f"glyphs: {type(inputs).__name__}")
        count, channels, height, width = inputs.stored.shape
        squares = inputs.stored.reshape(
            count, channels, height // _SQUARE, _SQUARE, width // _SQUARE, _SQUARE
        )
        means = squares.mean(axis=(3, 5), dtype=np.float32)
        found += [means.round().astype(np.uint8), labels.stored]
    return found[0], found[1], found[2], found[3]
