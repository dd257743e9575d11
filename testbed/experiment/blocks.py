"""Blocks of runs that belong on one machine, and the parts of a sweep that machines share out.

A block is all arms of one seed at one point of the factors. They are compared with each other, so
no part divides them. Parts are made of neighbouring blocks: as far as they can, all points of a
seed come to one machine, too. What belongs to which part depends on nothing but the runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.experiment.run import Run, ordered
from testbed.shared.input_error import InputError


@dataclass(frozen=True)
class Shard:
    """The part `number` (from 1) of `of` parts of a sweep."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parse(text: str) -> Shard:
    """The part that `--shard` names."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    shard = Shard(int(found[1]), int(found[2])) if found else Shard(0, 0)
    if not 1 <= shard.number <= shard.of:
        raise InputError(f"--shard {text}: valid: I/N, the part I of N parts, such as 1/3")
    return shard


def blocks(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs by seed and point, in the order of their execution."""
    found = itertools.groupby(ordered(runs), key=lambda run: (run.seed, run.factors))
    return [list(block) for _, block in found]


def shards(runs: Sequence[Run], of: int) -> dict[str, Shard]:
    """The part of each run, by its key, where a sweep has `of` parts."""
    found = blocks(runs)
    if of > len(found):
        raise InputError(
            f"--shard I/{of}: a part would be empty, since all arms of a seed and point stay "
            f"together; valid: at most {len(found)} parts"
        )
    return {
        run.key: Shard(1 + place * of // len(found), of)
        for place, block in enumerate(found)
        for run in block
    }
