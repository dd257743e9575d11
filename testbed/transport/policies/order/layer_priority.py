"""Chosen tensors first, or the last layers first."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.order import ChunkOrder, OrderContext
from testbed.transport.policies.tensor_names import matching, parse_globs


@dataclass(frozen=True, init=False)
class LayerPriority(ChunkOrder):
    """By tensor priority, then ascending; a chunk's priority is that of its most urgent tensor.

    Args:
        tensors: globs, most urgent first, `head.*;*.bias`; unnamed tensors come last.
        reverse: tensors of equal priority in reverse, the order in which backpropagation yields
            them.
    """

    tensors: tuple[str, ...]
    reverse: bool

    def __init__(self, tensors: str = "", reverse: bool = False) -> None:
        if not isinstance(reverse, bool):
            raise ValueError(f"reverse is {reverse!r}; valid: true, false")
        object.__setattr__(self, "tensors", parse_globs(tensors, "tensors"))
        object.__setattr__(self, "reverse", reverse)
        if not self.tensors and not reverse:
            raise ValueError("layer-priority needs tensors=GLOB;GLOB or reverse=true")

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        layout = context.layout
        count = len(layout.tensors)
        urgency = np.full(count, len(self.tensors))
        for place, glob in reversed(list(enumerate(self.tensors))):
            urgency[matching(layout, glob, "tensors")] = place
        if self.reverse:
            urgency = urgency * count + np.arange(count)[::-1]
        by_chunk = np.full(layout.chunk_count, np.iinfo(np.int64).max)
        np.minimum.at(by_chunk, layout.pieces.chunk, urgency[layout.pieces.tensor])
        return np.argsort(by_chunk, kind="stable")
