"""A user's images, in one folder per class."""

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.shared.yaml_input import InputError
from testbed.training.datasets.base import (
    Dataset,
    DatasetParameters,
    Progress,
    images_dataset,
    split_by_seed,
)

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
_Found = tuple[list[Path], NDArray[np.int64]]


class Parameters(DatasetParameters):
    """`directory/CLASS/*.png`, split 80/20, or `directory/train/CLASS` and `directory/test/CLASS`.

    Classes are the folders' names in alphabetical order. Images are cropped to their central
    square and scaled.
    """

    directory: str = Field(description="relative to the YAML file")
    image_size: int = Field(default=32, ge=8, le=512, description="pixels along each side")
    channels: Literal[1, 3] = Field(default=3, description="1: grey, 3: colour")

    def load(self, folder: Path | None) -> Dataset:
        """Inputs (channels, image_size, image_size)."""
        root = self._root(folder)
        classes, train, test = _listing(root)
        return images_dataset(
            train=(self._read(train[0]), train[1]),
            test=(self._read(test[0]), test[1]),
            classes=len(classes),
            source=f"imagefolder {root}",
            origin={
                "name": self.name,
                "class_names": classes,
                "pillow": metadata.version("pillow"),
            },
        )

    def prepare(self, folder: Path | None, progress: Progress) -> None:
        """Check that there are classes and images."""
        _listing(self._root(folder))

    def _root(self, folder: Path | None) -> Path:
        return (folder or Path()) / Path(self.directory).expanduser()

    def _read(self, paths: Sequence[Path]) -> NDArray[np.uint8]:
        from PIL import Image, ImageOps

        side = self.image_size
        images = np.empty((len(paths), self.channels, side, side), dtype=np.uint8)
        for index, path in enumerate(paths):
            try:
                with Image.open(path) as opened:
                    upright = ImageOps.exif_transpose(opened)
                    image = upright.convert("L" if self.channels == 1 else "RGB")
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                told = " ".join(str(error).split())
                raise InputError(f"{path}: not a readable image: {told}") from None
            pixels = np.asarray(ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR))
            images[index] = pixels.reshape(side, side, self.channels).transpose(2, 0, 1)
        return images


def _listing(root: Path) -> tuple[list[str], _Found, _Found]:
    """The names of the classes, and paths and labels of the training and the test part."""
    if not root.is_dir():
        raise InputError(f"imagefolder: {root}: no such folder")
    if (root / "train").is_dir() and (root / "test").is_dir():
        classes = _classes(root / "train")
        return classes, _found(root / "train", classes), _found(root / "test", classes)
    classes = _classes(root)
    paths, labels = _found(root, classes)
    train, test = split_by_seed(len(paths))
    return (
        classes,
        ([paths[index] for index in train], labels[train]),
        ([paths[index] for index in test], labels[test]),
    )


def _classes(root: Path) -> list[str]:
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    if len(classes) < 2:
        raise InputError(
            f"imagefolder: {root} has {len(classes)} folders; valid: 2 classes or more"
        )
    return classes


def _found(root: Path, classes: Sequence[str]) -> _Found:
    paths: list[Path] = []
    labels: list[int] = []
    unknown = sorted({path.name for path in root.iterdir() if path.is_dir()} - set(classes))
    if unknown:
        raise InputError(f"imagefolder: {root / unknown[0]}: no class of this name for training")
    for number, name in enumerate(classes):
        found = sorted(
            path for path in (root / name).rglob("*") if path.suffix.lower() in _SUFFIXES
        )
        if not found:
            raise InputError(f"imagefolder: {root / name} holds no images")
        paths += found
        labels += [number] * len(found)
    return paths, np.array(labels, dtype=np.int64)
