"""Caches the layer maps of the registry's models, since their packages take seconds to import."""

from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from testbed.shared.yaml_input import InputError
from testbed.training.datasets import cache

LayerMap = list[tuple[str, tuple[int, ...]]]
_PACKAGES = ("torch", "transformers")
_NO_DIMENSION = -1


def layers(name: str, classes: int, shape: Sequence[int], make: Callable[[], LayerMap]) -> LayerMap:
    """The layer map that `make` returns, cached per version of the packages and of our modules."""
    key = {
        "model": name,
        "classes": classes,
        "shape": list(shape),
        "sources": {path.name: cache.file_digest(path) for path in _sources()},
        **{each: _version(each) for each in _PACKAGES},
    }
    try:
        kept = cache.arrays("layers", key, lambda: _as_arrays(make()))
    except InputError:  # there is no place to keep it, or its own, which is then told
        return make()
    return [
        (str(each), tuple(int(size) for size in sizes if size != _NO_DIMENSION))
        for each, sizes in zip(kept["names"], kept["shapes"], strict=True)
    ]


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.py"))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""  # a model that needs it says so when it is built


def _as_arrays(made: LayerMap) -> cache.Arrays:
    most = max(len(shape) for _, shape in made)
    shapes = np.full((len(made), most), _NO_DIMENSION, dtype=np.int64)
    for row, (_, shape) in zip(shapes, made, strict=True):
        row[: len(shape)] = shape
    return {"names": np.array([name for name, _ in made]), "shapes": shapes}
