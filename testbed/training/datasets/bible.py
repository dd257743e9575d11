"""The King James Bible: its characters, and its verses, each of which is of one of 66 books."""

import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from testbed.shared.input_error import InputError
from testbed.training.datasets.base import (
    OF_WORDS,
    VOCABULARY_OF_WORDS,
    Dataset,
    DatasetParameters,
    digest,
    numbers,
)
from testbed.training.datasets.packages import Package
from testbed.training.datasets.stdlib_text import (
    TEST_PART,
    VALIDATION_PART,
    Characters,
    Text,
    part_of,
    tokens,
)

_PACKAGE = Package(
    name="bible-kjv-text",
    folder="/usr/lib",
    sha256={"bible.data": "6c746c2acc8a34bfded980883ff1701a5d68934a1c853ebf88a07b978fe0ae0e"},
)
_PARTS_AT = 0x58  # of the file: how many compressed parts it has, and where each begins
_COMPRESSED = b"\x1f\x9d\x90"  # a header of compress(1), which the parts go without
_VERSE = re.compile(r"^(\d?[A-Za-z]+)(\d+):(\d+) (.*)$", re.MULTILINE)
_UNKNOWN_WORD = 1


class _Verse(NamedTuple):
    book: str
    chapter: str
    number: str
    text: str


def _verses() -> list[_Verse]:
    return list(map(_Verse._make, _VERSE.findall("".join(_parts()))))


def _parts() -> Iterator[str]:
    content = _PACKAGE.read("bible.data")
    (count,) = struct.unpack_from(">I", content, _PARTS_AT)
    borders = struct.unpack_from(f">{count + 1}I", content, _PARTS_AT + 4)
    for begin, end in pairwise(borders):
        part = _COMPRESSED + content[begin:end]
        try:
            done = subprocess.run(["gzip", "-dc"], input=part, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise InputError(f"bible: gzip cannot unpack it: {error}") from None
        yield done.stdout.decode("ascii")


class Bible(Characters):
    """Characters of the King James Bible, as those of `stdlib-text`; test chapters are separate.

    A tenth of the chapters test, and another tenth validates.
    """

    package = _PACKAGE

    def load(self, folder: Path | None) -> Dataset:
        """The groups are books. A line is a verse, without its number."""
        train: list[tuple[str, Text]] = []
        others: dict[int, list[Text]] = {TEST_PART: [], VALIDATION_PART: []}
        for (book, chapter), verses in groupby(_verses(), lambda verse: verse[:2]):
            text = tokens("".join(f"{verse.text}\n" for verse in verses))
            if (part := part_of(f"{book}{chapter}")) in others:
                others[part].append(text)
            else:
                train.append((book, text))
        return self.dataset(train, *others.values(), origin={"package": _PACKAGE.name})


class Verses(DatasetParameters):
    """Words of a verse of the King James Bible; which of its 66 books is it from?

    A tenth of the 31,102 verses test, and another tenth validates. Words are numbered by how
    often they are in the training part.
    """

    inputs = "words"
    package = _PACKAGE

    def shape(self) -> tuple[int, tuple[int, ...]]:
        return 66, (91,)  # the longest verse has as many words

    def load(self, folder: Path | None) -> Dataset:
        """Inputs are numbers of words, followed by zeros; the groups are books."""
        verses = _verses()
        parts = np.array([part_of("{}{}:{}".format(*verse)) for verse in verses])
        in_training = ~np.isin(parts, (TEST_PART, VALIDATION_PART))
        words = [re.findall("[a-z]+", verse.text.lower()) for verse in verses]
        counts = Counter(
            word for those, train in zip(words, in_training, strict=True) if train for word in those
        )
        known = counts.most_common(VOCABULARY_OF_WORDS - _UNKNOWN_WORD - 1)
        number_of = {word: number for number, (word, _) in enumerate(known, _UNKNOWN_WORD + 1)}
        inputs = np.zeros((len(verses), max(map(len, words))), dtype=np.uint16)
        for row, those in zip(inputs, words, strict=True):
            row[: len(those)] = [number_of.get(word, _UNKNOWN_WORD) for word in those]
        books = list(dict.fromkeys(verse.book for verse in verses))
        labels = np.array([books.index(verse.book) for verse in verses], dtype=np.int64)
        test, validation = (
            (numbers(inputs[parts == part]), numbers(labels[parts == part]))
            for part in (TEST_PART, VALIDATION_PART)
        )
        return Dataset(
            task=OF_WORDS,
            classes=len(books),
            input_shape=inputs.shape[1:],
            train_inputs=numbers(inputs[in_training]),
            train_labels=numbers(labels[in_training]),
            test_inputs=test[0],
            test_labels=test[1],
            validation=validation,
            groups=labels[in_training],
            origin={
                "name": self.name,
                "package": _PACKAGE.name,
                "words": len(known),
                "sha256": digest(inputs, labels, parts),
            },
        )
