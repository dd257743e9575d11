"""Zeroes whole tensors of the mean at random, as the authors of DBLP did for its Figure 1.

Their published script (branch "dense", 2025) zeroes tensors of the averaged gradient at the server,
each independently with the drop probability. Nothing is lost on the way there: use it with the
protocol `none`. It takes part in rounds whose gather is not critical, so that the phases say when.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testbed.training.filling.base import Buffer, Filling, Mask
from testbed.training.filling.zero import Zero
from testbed.transport import PayloadLayout


@dataclass(kw_only=True)
class WholeTensors(Filling):
    """The plain mean, with zeros in tensors that are drawn; for the gather alone.

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
        self,
        layout: PayloadLayout,
        buffers: Sequence[Buffer],
        received: Sequence[Mask],
        out: Buffer,
    ) -> None:
        Zero().estimate_mean(layout, buffers, received, out)
        if self._draws is None:
            return
        ends = np.cumsum([count for _, count in layout.tensors])
        gone = self._draws.random(len(ends)) < self.share
        for begin, end in zip(ends[gone] - np.diff(ends, prepend=0)[gone], ends[gone], strict=True):
            layout.floats(out)[begin:end] = 0
