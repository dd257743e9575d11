"""Random order: every chunk is equally likely to be lost, which unbiased filling needs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.order import ChunkOrder, OrderContext


@dataclass(frozen=True, kw_only=True)
class Shuffled(ChunkOrder):
    """A new uniform permutation per transfer, determined by the seed and the transfer's number.

    All peers of one transfer get the same permutation, because replicas that lose the same part
    of a broadcast stay closer together. A seed in the configuration's text applies to every host.
    Without one each host has its own seed, so that workers do not lose the same part of a gather.

    Args:
        seed: the permutations' seed; a whole number, 0 or more.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.seed, int) and self.seed >= 0):
            raise ValueError(f"seed is {self.seed!r}; valid: whole numbers, 0 or more")

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        generator = np.random.default_rng([self.seed, context.transfer])
        return generator.permutation(context.layout.chunk_count)
