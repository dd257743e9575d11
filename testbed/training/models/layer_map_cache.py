"""Caches the layer maps of models whose packages take seconds to import."""

from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from testbed.training.datasets import cache

LayerMap = list[tuple[str, tuple[int, ...]]]
_PACKAGE = "transformers"
_NO_DIMENSION = -1


def layers(
    name: str, module: str, classes: int, shape: Sequence[int], make: Callable[[], LayerMap]
) -> LayerMap:
    """The layer map that `make` returns, cached per version of the package and of our module.

    Args:
        name: of the model.
        module: the file beside this one that builds it.
        classes, shape: classes and input shape that it is built for.
    """
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        return make()  # its error says what is missing
    source = cache.file_digest(Path(__file__).with_name(f"{module}.py"))
    key = {
        "model": name,
        "classes": classes,
        "shape": list(shape),
        _PACKAGE: version,
        "source": source,
    }
    kept = cache.arrays("layers", key, lambda: _as_arrays(make()))
    return [
        (str(each), tuple(int(size) for size in sizes if size != _NO_DIMENSION))
        for each, sizes in zip(kept["names"], kept["shapes"], strict=True)
    ]


def _as_arrays(made: LayerMap) -> cache.Arrays:
    most = max(len(shape) for _, shape in made)
    shapes = np.full((len(made), most), _NO_DIMENSION, dtype=np.int64)
    for row, (_, shape) in zip(shapes, made, strict=True):
        row[: len(shape)] = shape
    return {"names": np.array([name for name, _ in made]), "shapes": shapes}
