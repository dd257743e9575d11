"""Fills with what the same sender last delivered in that place.

MLT (NSDI 2024) does this for lost parameters. Here it is for gradients, where the last one serves
as an estimate of the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.training.filling.base import Buffer, Filling, Mask
from testbed.training.vectors import drop_nonfinite, mean_into
from testbed.transport import PayloadLayout


@dataclass(frozen=True, kw_only=True)
class Previous(Filling):
    """Keeps the old values: chunks that did not arrive leave their part of the buffer unchanged."""

    def estimate_mean(
        self,
        layout: PayloadLayout,
        buffers: Sequence[Buffer],
        received: Sequence[Mask],
        out: Buffer,
    ) -> None:
        payloads = [layout.floats(buffer) for buffer in buffers]
        mean_into(payloads, layout.floats(out))
        for payload in payloads:
            drop_nonfinite(payload)  # it counts in this mean, and not in later ones
