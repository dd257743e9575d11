"""Fillings that put zeros in the place of what is missing."""

from dataclasses import dataclass

import numpy as np

from testbed.training.filling.base import Buffer, Buffers, Filling, Masks, zero_missing
from testbed.training.vectors import mean_into
from testbed.transport import PayloadLayout


@dataclass(frozen=True, kw_only=True)
class Zero(Filling):
    """Fills with zeros, as DBLP does: no rescaling, no memory."""

    def estimate_mean(
        self, layout: PayloadLayout, buffers: Buffers, received: Masks, out: Buffer
    ) -> None:
        zero_missing(layout, buffers, received)
        mean_into([layout.floats(buffer) for buffer in buffers], layout.floats(out))


@dataclass(kw_only=True)
class WholeTensors(Filling):
    """Zeroes whole tensors of the mean at random, as the authors of DBLP did for its Figure 1.

    Their published script (branch "dense", 2025) zeroes tensors of the averaged gradient at
    the server, each independently: use it with the protocol `none`, for the gather alone.

    Args:
        share: how probable each tensor is zeroed, in a round that is not critical.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}; valid: 0 to 1")
        self._draws: np.random.Generator | None = None

    def begin_round(self, critical: bool, draws: np.random.Generator) -> None:
        self._draws = None if critical else draws

    def estimate_mean(
        self, layout: PayloadLayout, buffers: Buffers, received: Masks, out: Buffer
    ) -> None:
        Zero().estimate_mean(layout, buffers, received, out)
        if self._draws is None:
            return
        ends = np.cumsum([count for _, count in layout.tensors])
        gone = self._draws.random(len(ends)) < self.share
        for begin, end in zip(ends[gone] - np.diff(ends, prepend=0)[gone], ends[gone], strict=True):
            layout.floats(out)[begin:end] = 0
