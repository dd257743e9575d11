"""Marks: which chunks are switches to drop last?

`testbed.transport.core.marks` says what they are. To add one: a class here and a line in `MARKS`;
or a file of your own, `marks: ./mine.py`. Imports numpy, `testbed.shared` and the transport alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.shared.registry import Registry
from testbed.transport.core.marks import MarkedOrder, Marks
from testbed.transport.core.order import ChunkOrder, OrderContext
from testbed.transport.policies.order import ORDERS, LargestMagnitudeFirst

NONE = "none"


def unmarked() -> None:
    """No marks: datagrams are sent as any other traffic."""


@dataclass(frozen=True, kw_only=True)
class LayerAndMagnitude(Marks):
    """Back layers and large values are dropped last, small values of front layers first (MLT).

    So MLT (NSDI 2024) and DLCP (arXiv 2008.08445) have it, which say no more than that to us. What
    is back and what is large are assumptions of ours: together half of a payload.

    Args:
        back: the part of the payload, at its end, that counts as back layers; from 0 to 1.
        large: the part of all chunks that is protected beside these, those with the largest mean
            of absolute values; from 0 to 1. A chunk with a NaN or an infinity counts as the
            largest.
    """

    back: float = 0.25
    large: float = 0.25

    def __post_init__(self) -> None:
        for name in ("back", "large"):
            given = getattr(self, name)
            if not (isinstance(given, int | float) and 0 <= given <= 1):
                raise ValueError(f"{name} is {given!r}; valid: from 0 to 1")

    def protected(self, context: OrderContext) -> NDArray[np.bool_]:
        count = context.layout.chunk_count
        found = np.zeros(count, dtype=np.bool_)
        found[count - round(self.back * count) :] = True
        by_magnitude = LargestMagnitudeFirst().permutation(context)
        front = by_magnitude[~found[by_magnitude]]
        found[front[: round(self.large * count)]] = True
        return found


MARKS: Registry[Marks | None] = Registry(
    "kind of marks",
    {NONE: unmarked, "layer-and-magnitude": LayerAndMagnitude},
    own="Marks",
    base=Marks,
)


def sending_order(order: str, marks: str, *, seed: int) -> ChunkOrder:
    """The order of these names, whose chunks have classes where there are marks."""
    plain = ORDERS.create(order, seed=seed)
    kind = MARKS.create(marks)
    return plain if kind is None else MarkedOrder(plain, kind)
