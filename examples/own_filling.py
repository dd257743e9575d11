"""A filling: what a sender sent last in that place, faded.

`filling: ./own_filling.py`, or with options `filling: {name: ./own_filling.py, fade: 0.9}`
"""

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.training.filling import Buffer, Filling, Mask, chunk_elements, mean_into
from testbed.transport import PayloadLayout


@dataclass(frozen=True, kw_only=True)
class Faded(Filling):
    """The fields are the options."""

    fade: float = 0.5

    def estimate_mean(
        self,
        layout: PayloadLayout,
        buffers: Sequence[Buffer],
        received: Sequence[Mask],
        out: Buffer,
    ) -> None:
        """Chunks that did not arrive still hold what this filling left in the round before."""
        for buffer, mask in zip(buffers, received, strict=True):
            chunk_elements(layout, buffer)[~mask] *= self.fade
        mean_into([layout.floats(buffer) for buffer in buffers], layout.floats(out))
