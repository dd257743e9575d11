"""CIFAR-10 in its binary form: 60,000 colour images of 32 x 32 pixels in 10 classes.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. A record is one byte for
the label, then 1,024 bytes each for red, green and blue.
"""

import hashlib
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.shared.problems import form
from testbed.shared.yaml_input import InputError
from testbed.training.datasets import cache
from testbed.training.datasets.base import Dataset, DatasetParameters, Progress, images_dataset

ARCHIVE = "cifar-10-binary.tar.gz"
_URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("test_batch.bin",)
# Checksums of the unpacked files, as published by ankane's torchvision for Ruby.
_FILE_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_RECORD_BYTES = 1 + 3 * 32 * 32
_LARGEST_FILE_BYTES = 10_000 * _RECORD_BYTES
_Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Parameters(DatasetParameters):
    """Read from `directory`, which holds the archive or its unpacked files.

    Without a directory the archive is downloaded once into the cache folder. Everything is checked
    against the published SHA-256 unless `verify` is false, for other data in the same form.
    """

    directory: str | None = Field(default=None, description="relative to the YAML file")
    url: str = Field(default=_URL, description="where the archive is downloaded from, once")
    sha256: str = form(
        "^[0-9a-fA-F]{64}$",
        "the 64 hexadecimal digits of a SHA-256",
        default=_ARCHIVE_SHA256,
        description="what the archive must hash to",
    )
    verify: bool = Field(default=True, description="whether sizes and hashes are checked")

    def load(self, folder: Path | None) -> Dataset:
        """Inputs (3, 32, 32), 10 classes; the published split."""
        place = self._place(folder)
        archive = place / ARCHIVE
        if archive.is_file():
            files = self._from_archive(archive)
        elif (unpacked := _unpacked(place)) is not None:
            files = self._from_files(unpacked)
        else:
            raise InputError(
                f"cifar10: {place} holds neither {ARCHIVE} nor {_TRAIN[0]} to {_TEST[0]}"
                + ("" if self.directory else " and it could not be downloaded")
            )
        return images_dataset(
            train=_records(_TRAIN, files),
            test=_records(_TEST, files),
            classes=10,
            source="cifar10",
            origin={"name": self.name, "verified": self.verify, "url": self.url},
        )

    def train_count(self) -> int | None:
        """The published number, unless the data is the user's own."""
        return 50_000 if self.verify and self.sha256 == _ARCHIVE_SHA256 else None

    def prepare(self, folder: Path | None, progress: Progress) -> None:
        """Download the archive, unless a directory is given or the archive is cached."""
        archive = self._place(folder) / ARCHIVE
        if self.directory is None and not archive.is_file():
            cache.fetch(self.url, archive, sha256=self.sha256, progress=progress)
        elif not archive.is_file() and _unpacked(archive.parent) is None:
            self.load(folder)  # says what is missing

    def _place(self, folder: Path | None) -> Path:
        if self.directory is None:
            return cache.folder()
        return (folder or Path()) / Path(self.directory).expanduser()

    def _from_archive(self, archive: Path) -> dict[str, bytes]:
        if self.verify:
            _compare(archive, cache.file_digest(archive), self.sha256)
        files = {}
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    name = Path(member.name).name
                    wanted = name in _TRAIN or name in _TEST
                    if wanted and member.isfile() and member.size <= _LARGEST_FILE_BYTES:
                        content = tar.extractfile(member)
                        assert content is not None
                        files[name] = content.read()
        except (tarfile.TarError, OSError, EOFError) as error:
            raise InputError(f"{archive}: not a readable archive: {error}") from None
        return files

    def _from_files(self, place: Path) -> dict[str, bytes]:
        files = {}
        for name in (*_TRAIN, *_TEST):
            path = place / name
            if not path.is_file():
                continue
            if path.stat().st_size > _LARGEST_FILE_BYTES:
                raise InputError(f"{path}: larger than {_LARGEST_FILE_BYTES} bytes")
            content = path.read_bytes()
            if self.verify:
                _compare(path, hashlib.sha256(content).hexdigest(), _FILE_SHA256[name])
            files[name] = content
        return files


def _unpacked(place: Path) -> Path | None:
    """The folder with the unpacked files: `place`, or the archive's folder in it."""
    for each in (place, place / "cifar-10-batches-bin"):
        if (each / _TEST[0]).is_file():
            return each
    return None


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


def _compare(path: Path, found: str, expected: str) -> None:
    if found != expected.lower():
        raise InputError(f"{path}: its SHA-256 is {found}, expected {expected.lower()}")
