"""Loses a share of some tensors' chunks at random: of a flat gradient, what does not arrive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.training.vectors import Vector
from testbed.transport import PayloadLayout

SMALL = "small"


@dataclass(frozen=True)
class Group:
    """Tensors that lose together: one, or all small ones.

    Attributes:
        name: the tensor's, or `small`.
        tensors: their names, in the order of the payload.
    """

    name: str
    tensors: tuple[str, ...]


def groups(layout: PayloadLayout, least: float) -> list[Group]:
    """Each tensor by itself; those of which the share `least` is less than a chunk together."""
    own: list[str] = []
    small: list[str] = []
    for name, count in layout.tensors:
        is_small = count * least < layout.elements_per_chunk
        (small if is_small else own).append(name)
    found = [Group(name, (name,)) for name in own]
    return [*found, Group(SMALL, tuple(small))] if small else found


class _Parts(NamedTuple):
    """The parts of a group's tensors that lie in one chunk each; shape (parts,)."""

    starts: NDArray[np.int64]
    elements: NDArray[np.int64]
    allowed: int


class Losses:
    """Zeroes parts of gradients, as a lost chunk does, but of one group's tensors alone.

    The order in which parts are lost depends on the seed, round, worker and group's place in
    `shares`, and not on the share itself. So a larger share loses all that a smaller one does.

    Args:
        layout: of the gradient.
        shares: (group, the share of its elements that is lost at most).
    """

    def __init__(
        self, layout: PayloadLayout, shares: Sequence[tuple[Group, float]], seed: int
    ) -> None:
        self._seed = seed
        self._groups = [_parts(layout, group, share) for group, share in shares]
        self._lost = 0
        self._all = 0

    @property
    def share(self) -> float:
        """Of the groups' elements, how many were lost until now."""
        return self._lost / max(1, self._all)

    def apply(self, gradient: Vector, *, round_number: int, rank: int) -> None:
        """Zero what this worker's gradient loses in this round."""
        for index, parts in enumerate(self._groups):
            draws = np.random.default_rng([self._seed, round_number, rank, index])
            order = draws.permutation(len(parts.starts))
            fits = np.cumsum(parts.elements[order]) <= parts.allowed
            for start, count in _of(parts, order[fits]):
                gradient[start : start + count] = 0
                self._lost += count
            self._all += int(parts.elements.sum())


def _parts(layout: PayloadLayout, group: Group, share: float) -> _Parts:
    pieces, names = layout.pieces, [name for name, _ in layout.tensors]
    chosen = np.isin(pieces.tensor, [names.index(name) for name in group.tensors])
    starts = np.cumsum(pieces.elements) - pieces.elements
    elements = pieces.elements[chosen]
    allowed = int(share * elements.sum() + 1e-9)
    return _Parts(starts[chosen], elements, allowed)


def _of(parts: _Parts, chosen: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    for number in chosen:
        yield int(parts.starts[number]), int(parts.elements[number])


def by_tensor(
    bounds: Mapping[str, float], found: Sequence[Group], layout: PayloadLayout
) -> dict[str, float]:
    """The bound of each tensor, in the order of the payload, from those of the groups."""
    of_group = {tensor: bounds[group.name] for group in found for tensor in group.tensors}
    return {name: of_group[name] for name, _ in layout.tensors}
