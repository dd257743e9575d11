"""Characters of the Python standard library's own sources."""

import hashlib
import platform
import sysconfig
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.shared.yaml_input import InputError
from testbed.training.datasets.base import (
    LANGUAGE_MODELLING,
    Dataset,
    DatasetParameters,
    digest,
    windows,
)

# Newline and printable ASCII; everything else is one token, the last.
VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))
OTHER = len(VOCABULARY)
_TEST_OF_FILES = 10  # one in so many, by a hash of its name
_FEWEST_FILES = 20
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


class Parameters(DatasetParameters):
    """Sequences of characters, each of which is to be predicted; test files are separate files."""

    inputs = "tokens"
    sequence_length: int = Field(default=64, ge=2, le=4096, description="in characters")
    test_sequences: int = Field(default=512, ge=1, description="evenly taken from the test files")

    def load(self, folder: Path | None) -> Dataset:
        """Inputs (sequence_length,) of 97 tokens; the groups are top-level modules."""
        root = Path(sysconfig.get_path("stdlib"))
        files = source_files(root)
        if len(files) < _FEWEST_FILES:
            raise InputError(f"stdlib-text: {root} holds {len(files)} Python sources; is it there?")
        train_files = [path for path in files if not _is_test(path.relative_to(root))]
        train = [_tokens(path) for path in train_files]
        test = [_tokens(path) for path in files if _is_test(path.relative_to(root))]
        modules = [path.relative_to(root).parts[0] for path in train_files]
        train_text, test_text = np.concatenate(train), np.concatenate(test)
        train_starts, test_starts = self._starts(train_text), self._starts(test_text)
        count = min(self.test_sequences, len(test_starts))
        test_starts = test_starts[np.linspace(0, len(test_starts) - 1, count).astype(np.int64)]
        ends = np.cumsum([len(text) for text in train])
        _, numbers = np.unique(modules, return_inverse=True)
        length = self.sequence_length
        return Dataset(
            task=LANGUAGE_MODELLING,
            classes=OTHER + 1,
            input_shape=(length,),
            train_inputs=windows(train_text, train_starts, length, 0),
            train_labels=windows(train_text, train_starts, length, 1),
            test_inputs=windows(test_text, test_starts, length, 0),
            test_labels=windows(test_text, test_starts, length, 1),
            groups=numbers[np.searchsorted(ends, train_starts, side="right")].astype(np.int64),
            origin={
                "name": self.name,
                "python": platform.python_version(),
                "files": len(files),
                "test_files": len(test),
                "train_characters": len(train_text),
                "test_characters": len(test_text),
                "sha256": digest(train_text, test_text),
            },
        )

    def _starts(self, text: NDArray[np.uint8]) -> NDArray[np.int64]:
        return np.arange(0, len(text) - self.sequence_length, self.sequence_length)


def source_files(root: Path) -> list[Path]:
    sources = [
        path for path in root.rglob("*.py") if not _LEFT_OUT & set(path.relative_to(root).parts)
    ]
    return sorted(sources, key=lambda path: path.relative_to(root).parts)


def _tokens(path: Path) -> NDArray[np.uint8]:
    """The file's characters as token numbers; a final newline separates it from the next file."""
    table = np.full(256, OTHER, dtype=np.uint8)
    table[np.frombuffer(VOCABULARY.encode(), dtype=np.uint8)] = np.arange(OTHER, dtype=np.uint8)
    text = path.read_text(encoding="utf-8", errors="replace").expandtabs(4) + "\n"
    if text.isascii():
        codes = text.encode()
    else:  # one byte for each character
        codes = bytes(ord(character) if ord(character) < 128 else 255 for character in text)
    return table[np.frombuffer(codes, dtype=np.uint8)]


def _is_test(relative: Path) -> bool:
    name = hashlib.sha256(relative.as_posix().encode()).digest()
    return int.from_bytes(name[:8], "big") % _TEST_OF_FILES == 0
