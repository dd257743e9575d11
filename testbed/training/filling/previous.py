"""What the same sender sent last in that place.

MLT (NSDI 2024) does so for lost parameters; here it is for gradients, of which the last one is a
guess at the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.training.aggregation import mean_into
from testbed.training.filling.base import Buffer, Filling, Mask
from testbed.transport import PayloadLayout


@dataclass(frozen=True, kw_only=True)
class Previous(Filling):
    """Chunks that did not arrive leave the buffer as it was, so the old values are there."""

    def estimate_mean(
        self,
        layout: PayloadLayout,
        buffers: Sequence[Buffer],
        received: Sequence[Mask],
        out: Buffer,
    ) -> None:
        mean_into([layout.floats(buffer) for buffer in buffers], layout.floats(out))
