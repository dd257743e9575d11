"""Data sets of images: handwritten digits, clothes, CIFAR-10, and rendered characters."""

import gzip
import tarfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from testbed.shared.yaml_input import InputError
from testbed.training.datasets import cache
from testbed.training.datasets.base import (
    Dataset,
    DatasetParameters,
    Progress,
    images_dataset,
    split_by_seed,
)
from testbed.training.datasets.packages import Package

ARCHIVE = "cifar-10-binary.tar.gz"
_URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"
_Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Digits(DatasetParameters):
    """Handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, 359 of them for testing."""

    name: str = "digits"

    def shape(self) -> tuple[int, tuple[int, ...]]:
        return 10, (1, 8, 8)

    def load(self, folder: Path | None) -> Dataset:
        version = metadata.version("scikit-learn")
        try:
            # Cached, because importing scikit-learn takes a second or two in every run.
            arrays = cache.arrays("digits", {"scikit-learn": version}, _from_package)
        except InputError:  # no cache folder
            arrays = _from_package()
        images, labels = arrays["images"], arrays["labels"]
        train, test = split_by_seed(len(labels))
        return images_dataset(
            train=(images[train], labels[train]),
            test=(images[test], labels[test]),
            classes=10,
            source="digits",
            origin={"name": self.name, "scikit-learn": version},
        )


def _from_package() -> cache.Arrays:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return {
        "images": bunch.images.astype(np.float32)[:, None],
        "labels": bunch.target.astype(np.int64),
    }


class FashionMnist(DatasetParameters):
    """Photographs of clothes in 10 classes: 50,000 train, 10,000 validate, 10,000 test.

    Xiao, Rasul and Vollgraf, arXiv 1708.07747. The last of the published training images validate.
    """

    side: Literal[28, 32] = Field(default=28, description="pixels; 32 has a border of zeros")
    package = Package(
        name="dataset-fashion-mnist",
        folder="/usr/share/datasets/fashion-mnist",
        sha256={
            "train-images-idx3-ubyte.gz": (
                "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"
            ),
            "train-labels-idx1-ubyte.gz": (
                "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"
            ),
            "t10k-images-idx3-ubyte.gz": (
                "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"
            ),
            "t10k-labels-idx1-ubyte.gz": (
                "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"
            ),
        },
    )

    def shape(self) -> tuple[int, tuple[int, ...]]:
        return 10, (1, self.side, self.side)

    def load(self, folder: Path | None) -> Dataset:
        images, labels = self._published("train")
        train, validation = slice(0, 50_000), slice(50_000, None)
        return images_dataset(
            train=(images[train], labels[train]),
            validation=(images[validation], labels[validation]),
            test=self._published("t10k"),
            classes=10,
            source="fashion-mnist",
            origin={"name": self.name, "package": self.package.name},
        )

    def _published(self, part: str) -> _Part:
        # The SHA-256 was right: the headers need no check.
        pixels, labels = (
            np.frombuffer(gzip.decompress(self.package.read(name)), np.uint8, offset=header_bytes)
            for name, header_bytes in (
                (f"{part}-images-idx3-ubyte.gz", 16),
                (f"{part}-labels-idx1-ubyte.gz", 8),
            )
        )
        border = (self.side - 28) // 2
        images = np.pad(pixels.reshape(-1, 1, 28, 28), [(0, 0), (0, 0), *[(border, border)] * 2])
        return images, labels.astype(np.int64)


class Cifar10(DatasetParameters):
    """60,000 colour images of 32 x 32 pixels in 10 classes (Krizhevsky, 2009).

    Read from the archive in `directory`, or else downloaded once; its SHA-256 is checked.
    """

    directory: str | None = Field(default=None, description="relative to the YAML file")

    def shape(self) -> tuple[int, tuple[int, ...]]:
        return 10, (3, 32, 32)

    def load(self, folder: Path | None) -> Dataset:
        archive = self._archive(folder)
        if not archive.is_file():
            raise InputError(f"cifar10: {archive.parent} holds no {ARCHIVE}")
        if (sha256 := cache.file_digest(archive)) != _ARCHIVE_SHA256:
            raise InputError(f"{archive}: its SHA-256 is {sha256}, expected {_ARCHIVE_SHA256}")
        files = {}
        with tarfile.open(archive) as tar:
            for member in tar:  # in this order, since to go back is to unpack again
                if (file := tar.extractfile(member)) is not None:
                    files[Path(member.name).name] = file.read()
        return images_dataset(
            train=_records([files[name] for name in _TRAIN]),
            test=_records([files[_TEST]]),
            classes=10,
            source="cifar10",
            origin={"name": self.name, "url": _URL},
        )

    def prepare(self, folder: Path | None, progress: Progress) -> None:
        archive = self._archive(folder)
        if archive.is_file():
            return
        if self.directory is not None:
            self.load(folder)  # says what is missing
        cache.fetch(_URL, archive, sha256=_ARCHIVE_SHA256, progress=progress)

    def _archive(self, folder: Path | None) -> Path:
        if self.directory is None:
            return cache.folder() / ARCHIVE
        return (folder or Path()) / Path(self.directory).expanduser() / ARCHIVE


def _records(files: Sequence[bytes]) -> _Part:
    # The SHA-256 was right: all records are whole.
    records = np.frombuffer(b"".join(files), dtype=np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].astype(np.int64)


# Glyphs.

DIGITS_AND_CAPITALS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_FORMAT = 1  # raise it when the rendering below changes
_SIDE = 32  # pixels, before they are averaged to fewer
_DRAWN_SIDE, _FONT_SIZE = 96, 56  # the undistorted drawing
# Fonts with symbols in the places of ASCII characters, which their character tables do not show.
_SYMBOL_FONTS = {"cmex10.ttf", "cmsy10.ttf", "LastResortHE-Regular.ttf"}


class Glyphs(DatasetParameters):
    """Characters of matplotlib's fonts, rotated, sheared, scaled and moved, with noise.

    They are grey images of `side` x `side` pixels. The test part uses the same fonts with other
    distortions.
    """

    size: int = Field(default=12_000, ge=100, le=1_000_000, description="images, a fifth for tests")
    characters: str = Field(
        default=DIGITS_AND_CAPITALS, min_length=2, description="each is a class"
    )
    rotation_degrees: float = Field(default=15.0, ge=0, le=180, description="at most, either way")
    noise: float = Field(default=0.15, ge=0, le=1, description="standard deviation; white is 1")
    seed: Annotated[int, Field(ge=0)] | Literal["run"] = Field(
        default=0, description="seed of the distortions; `run`: each seed of a sweep has its own"
    )
    side: Literal[8, 16, 32] = Field(
        default=32,
        description="pixels; fewer are means of squares of the 32 x 32",
    )

    @field_validator("characters")
    @classmethod
    def _are_distinct(cls, characters: str) -> str:
        if len(set(characters)) != len(characters) or not characters.isprintable():
            raise ValueError("must be distinct printable characters")
        return characters

    def of_run(self, seed: int) -> Self:
        return self if self.seed != "run" else self.model_copy(update={"seed": seed})

    def shape(self) -> tuple[int, tuple[int, ...]]:
        return len(self.characters), (1, self.side, self.side)

    def load(self, folder: Path | None) -> Dataset:
        fonts = _suitable_fonts(self.characters)
        versions = _versions()
        names = {path.name: cache.file_digest(path) for path in fonts}
        key = {"format": _FORMAT, **self.model_dump(), **versions, "files": sorted(names.items())}
        made = cache.arrays("glyphs", key, lambda: _render(self, fonts))
        train, test = split_by_seed(self.size)
        images, labels = made["images"], made["labels"]
        return images_dataset(
            train=(images[train], labels[train]),
            test=(images[test], labels[test]),
            classes=len(self.characters),
            source="glyphs",
            origin={**self.model_dump(), **versions, "font_files": names},
        )

    def prepare(self, folder: Path | None, progress: Progress) -> None:
        self.load(folder)


def _suitable_fonts(characters: str) -> list[Path]:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [path for path in sorted(folder.glob("*.ttf")) if _has_all(path, characters)]
    if not fonts:
        raise InputError(f"glyphs: no font has all of the characters {characters!r}")
    return fonts


def _has_all(path: Path, characters: str) -> bool:
    from fontTools.ttLib import TTFont, TTLibError
    from PIL import ImageFont

    if path.name in _SYMBOL_FONTS:
        return False
    try:
        with TTFont(path, lazy=True, fontNumber=0) as font:
            covered = font.getBestCmap() or {}
        if any(ord(character) not in covered for character in characters):
            return False
        drawn = ImageFont.truetype(str(path), 24, layout_engine=ImageFont.Layout.BASIC)
        masks = [drawn.getmask(character) for character in characters]
    except (OSError, TTLibError):
        return False
    distinct = {(mask.size, bytes(mask)) for mask in masks}
    return len(distinct) == len(characters) and all(0 not in mask.size for mask in masks)


def _render(parameters: Glyphs, fonts: Sequence[Path]) -> cache.Arrays:
    """Render `images`, uint8 (N, 1, side, side), and `labels`, (N,); equally many per class."""
    from PIL import Image

    if parameters.seed == "run":
        raise ValueError("glyphs: seed 'run' needs a run")
    random = np.random.default_rng([parameters.seed, _FORMAT])
    side, squares = parameters.side, _SIDE // parameters.side
    count, classes = parameters.size, len(parameters.characters)
    labels = random.permutation(np.arange(count) % classes)
    chosen_fonts = random.integers(len(fonts), size=count)
    transforms = _transforms(random, count, parameters.rotation_degrees)
    drawings = [[_draw(path, character) for character in parameters.characters] for path in fonts]
    images = np.empty((count, 1, side, side), dtype=np.uint8)
    for index in range(count):
        drawing = drawings[chosen_fonts[index]][labels[index]]
        image = drawing.transform(
            (_SIDE, _SIDE),
            Image.Transform.AFFINE,
            tuple(transforms[index]),
            resample=Image.Resampling.BILINEAR,
        )
        images[index, 0] = image if squares == 1 else image.reduce(squares)
    contrast = random.uniform(0.5, 1.0, size=count).astype(np.float32)
    for part in np.array_split(np.arange(count), -(-count // 1000)):
        pixels = images[part] / np.float32(255) * contrast[part, None, None, None]
        pixels += np.float32(parameters.noise) * random.standard_normal(
            pixels.shape, dtype=np.float32
        )
        images[part] = (np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)
    return {"images": images, "labels": labels.astype(np.int64)}


def _draw(path: Path, character: str) -> Any:
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(path), _FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
    image = Image.new("L", (_DRAWN_SIDE, _DRAWN_SIDE))
    left, top, right, bottom = font.getbbox(character)
    middle = ((_DRAWN_SIDE - left - right) / 2, (_DRAWN_SIDE - top - bottom) / 2)
    ImageDraw.Draw(image).text(middle, character, fill=255, font=font)
    return image


def _transforms(
    random: np.random.Generator, count: int, rotation_degrees: float
) -> NDArray[np.float64]:
    """Pillow's affine coefficients from the small image to the drawing, shape (count, 6)."""
    angle = np.deg2rad(random.uniform(-rotation_degrees, rotation_degrees, count))
    shear = random.uniform(-0.25, 0.25, count)
    scale_x, scale_y = random.uniform(0.75, 1.25, (2, count)) * (_DRAWN_SIDE / _SIDE) * 0.75
    shift_x, shift_y = random.uniform(-2.5, 2.5, (2, count))
    a = scale_x * np.cos(angle)
    b = scale_x * (shear * np.cos(angle) - np.sin(angle))
    d = scale_y * np.sin(angle)
    e = scale_y * (shear * np.sin(angle) + np.cos(angle))
    centre, middle = (_SIDE - 1) / 2, (_DRAWN_SIDE - 1) / 2
    x, y = centre + shift_x, centre + shift_y
    return np.stack([a, b, middle - a * x - b * y, d, e, middle - d * x - e * y], axis=1)


def _versions() -> dict[str, str]:
    from PIL import features

    return {
        "pillow": metadata.version("pillow"),
        "freetype": str(features.version("freetype2")),
        "numpy": metadata.version("numpy"),
        "matplotlib": metadata.version("matplotlib"),
    }
