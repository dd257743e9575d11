"""Images of published data sets: handwritten digits and CIFAR-10."""

import tarfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.shared.yaml_input import InputError
from testbed.training.datasets import cache
from testbed.training.datasets.base import (
    Dataset,
    DatasetParameters,
    Progress,
    images_dataset,
    split_by_seed,
)

ARCHIVE = "cifar-10-binary.tar.gz"
_URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("test_batch.bin",)
_RECORD_BYTES = 1 + 3 * 32 * 32
_LARGEST_FILE_BYTES = 10_000 * _RECORD_BYTES
_Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Digits(DatasetParameters):
    """Handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, 359 of them for testing."""

    name: str = "digits"

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


class Cifar10(DatasetParameters):
    """60,000 colour images of 32 x 32 pixels in 10 classes (Krizhevsky, 2009).

    Read from the archive in `directory`, or else downloaded once; its SHA-256 is checked.
    """

    directory: str | None = Field(default=None, description="relative to the YAML file")

    def load(self, folder: Path | None) -> Dataset:
        archive = self._archive(folder)
        if not archive.is_file():
            raise InputError(f"cifar10: {archive.parent} holds no {ARCHIVE}")
        files = self._files(archive)
        return images_dataset(
            train=_records(_TRAIN, files),
            test=_records(_TEST, files),
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

    def _files(self, archive: Path) -> dict[str, bytes]:
        if (sha256 := cache.file_digest(archive)) != _ARCHIVE_SHA256:
            raise InputError(f"{archive}: its SHA-256 is {sha256}, expected {_ARCHIVE_SHA256}")
        files = {}
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    name = Path(member.name).name
                    expected = name in _TRAIN or name in _TEST
                    if expected and member.isfile() and member.size <= _LARGEST_FILE_BYTES:
                        content = tar.extractfile(member)
                        assert content is not None
                        files[name] = content.read()
        except (tarfile.TarError, OSError, EOFError) as error:
            raise InputError(f"{archive}: not a readable archive: {error}") from None
        return files


def _records(names: tuple[str, ...], files: dict[str, bytes]) -> _Part:
    parts = []
    for name in names:
        content = files.get(name)
        if content is None:
            raise InputError(f"cifar10: {name} is missing")
        if not content or len(content) % _RECORD_BYTES:
            raise InputError(
                f"cifar10: {name} has {len(content)} bytes; valid: a multiple of {_RECORD_BYTES}"
            )
        parts.append(np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD_BYTES))
    records: NDArray[Any] = np.concatenate(parts)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].astype(np.int64)
