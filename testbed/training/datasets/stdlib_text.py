"""Characters of the Python standard library's own sources."""

import hashlib
import platform
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.shared.yaml_input import InputError
from testbed.training.datasets.base import (
    LANGUAGE_MODELLING,
    Dataset,
    DatasetParameters,
    Examples,
    digest,
    numbers,
)

# Newline and printable ASCII; everything else is one token, the last.
VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))
OTHER = len(VOCABULARY)
TEST_PART, VALIDATION_PART = 0, 1  # see `part_of`
_FEWEST_FILES = 20
Text = NDArray[np.uint8]  # token numbers
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


class Characters(DatasetParameters):
    """Sequences of characters of a text; a model predicts each one's next."""

    inputs = "tokens"
    sequence_length: int = Field(default=64, ge=2, le=4096, description="in characters")
    test_sequences: int = Field(default=512, ge=1, description="evenly taken from the test part")

    def shape(self) -> tuple[int, tuple[int, ...]]:
        return OTHER + 1, (self.sequence_length,)

    def dataset(
        self, train: Sequence[tuple[str, Text]], *others: Sequence[Text], origin: dict[str, Any]
    ) -> Dataset:
        """Inputs (sequence_length,) of 97 tokens.

        Args:
            train: texts that are trained on, each with the name of its group.
            others: the texts of the test part, and perhaps those of a validation part.
        """
        text = np.concatenate([text for _, text in train])
        tested = [np.concatenate(part) for part in others]
        inputs, labels = self._sequences(text)
        starts = np.arange(len(inputs)) * self.sequence_length
        ends = np.cumsum([len(text) for _, text in train])
        _, groups = np.unique([group for group, _ in train], return_inverse=True)
        (test_inputs, test_labels), *validation = map(self._evenly, tested)
        return Dataset(
            task=LANGUAGE_MODELLING,
            classes=OTHER + 1,
            input_shape=(self.sequence_length,),
            train_inputs=numbers(inputs),
            train_labels=numbers(labels),
            test_inputs=test_inputs,
            test_labels=test_labels,
            groups=groups[np.searchsorted(ends, starts, side="right")].astype(np.int64),
            origin={
                "name": self.name,
                **origin,
                "train_characters": len(text),
                "test_characters": len(tested[0]),
                "sha256": digest(text, *tested),
            },
            validation=validation[0] if validation else None,
        )

    def _sequences(self, text: Text) -> tuple[Text, Text]:
        """Returns a text's sequences, and those that begin one character later."""
        size = (len(text) - 1) // self.sequence_length * self.sequence_length
        inputs, labels = text[:size], text[1 : size + 1]
        return inputs.reshape(-1, self.sequence_length), labels.reshape(-1, self.sequence_length)

    def _evenly(self, text: Text) -> tuple[Examples, Examples]:
        inputs, labels = self._sequences(text)
        count = min(self.test_sequences, len(inputs))
        chosen = np.linspace(0, len(inputs) - 1, count).astype(np.int64)
        return numbers(inputs[chosen]), numbers(labels[chosen])


class Parameters(Characters):
    """Sequences of characters, each of which is to be predicted; test files are separate files."""

    def load(self, folder: Path | None) -> Dataset:
        """The groups are top-level modules."""
        root = Path(sysconfig.get_path("stdlib"))
        files = source_files(root)
        if len(files) < _FEWEST_FILES:
            raise InputError(f"stdlib-text: {root} holds {len(files)} Python sources; is it there?")
        train: list[tuple[str, Text]] = []
        test: list[Text] = []
        for path in files:
            place, text = path.relative_to(root), path.read_text(encoding="utf-8", errors="replace")
            characters = tokens(text.expandtabs(4) + "\n")  # which separates it from the next
            if part_of(place.as_posix()) == TEST_PART:
                test.append(characters)
            else:
                train.append((place.parts[0], characters))
        origin = {
            "python": platform.python_version(),
            "files": len(files),
            "test_files": len(test),
        }
        return self.dataset(train, test, origin=origin)


def source_files(root: Path) -> list[Path]:
    sources = [
        path for path in root.rglob("*.py") if not _LEFT_OUT & set(path.relative_to(root).parts)
    ]
    return sorted(sources, key=lambda path: path.relative_to(root).parts)


def tokens(text: str) -> Text:
    """The token numbers of a text's characters."""
    table = np.full(256, OTHER, dtype=np.uint8)
    table[np.frombuffer(VOCABULARY.encode(), dtype=np.uint8)] = np.arange(OTHER, dtype=np.uint8)
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    return table[np.minimum(codes, 255)]


def part_of(name: str) -> int:
    """A tenth of all, 0 to 9, that a named text belongs to: by a hash, the same everywhere."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 10
