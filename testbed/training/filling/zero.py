"""Fills with zeros, as DBLP does: no rescaling, no memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.training.filling.base import Buffer, Filling, Mask, zero_missing
from testbed.training.vectors import mean_into
from testbed.transport import PayloadLayout


@dataclass(frozen=True, kw_only=True)
class Zero(Filling):
    """The plain mean with zeros for missing chunks; too small by the missing share."""

    def estimate_mean(
        self,
        layout: PayloadLayout,
        buffers: Sequence[Buffer],
        received: Sequence[Mask],
        out: Buffer,
    ) -> None:
        zero_missing(layout, buffers, received)
        mean_into([layout.floats(buffer) for buffer in buffers], layout.floats(out))
