"""One bit for each element: what is sent has two values in each chunk, and the error is owed.

1-bit SGD (Seide et al., Interspeech 2014): the residual is added to the gradient; an element above
0 is sent as the mean of those that are, any other as the mean of the others; the quantisation error
is the next residual. So it is with the mean that is sent back. Their means are of a column of a
weight matrix, ours of a chunk, so that the transport's coding `two-values` carries them as bits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.shared.input_error import InputError
from testbed.training.filling.base import Buffer, SenderMemory, chunk_elements
from testbed.training.filling.plain_means import Zero
from testbed.transport import PayloadLayout, TransferReport


def two_values(layout: PayloadLayout, buffer: Buffer) -> NDArray[np.float32]:
    """For each chunk the means of the elements above 0 and of the others; both may be NaN."""
    rows = chunk_elements(layout, buffer)
    count = np.empty((layout.chunk_count, 2))
    count[:, 0] = np.count_nonzero(rows > 0, axis=1)
    count[:, 1] = layout.chunk_lengths // rows.itemsize - count[:, 0]
    total = np.empty_like(count)
    with np.errstate(invalid="ignore"):
        total[:, 0] = np.maximum(rows, 0).sum(axis=1, dtype=np.float64)
        total[:, 1] = np.minimum(rows, 0).sum(axis=1, dtype=np.float64)
    total[~np.isfinite(total).all(axis=1)] = np.nan
    return (total / np.maximum(count, 1)).astype(np.float32)


class Quantised(SenderMemory):
    """Sends a gradient quantised, and holds what that has changed."""

    shared = True

    def __init__(self, layout: PayloadLayout) -> None:
        self.owed = layout.new_buffer()
        self._layout = layout
        self._payload = layout.new_buffer()

    def payload(self, gradient: Buffer) -> Buffer:
        layout = self._layout
        owed, sent = layout.floats(self.owed), layout.floats(self._payload)
        with np.errstate(over="ignore", invalid="ignore"):
            owed += layout.floats(gradient)
            values = two_values(layout, self.owed)
            rows = chunk_elements(layout, self.owed)
            above, other = values[:, :1], values[:, 1:]
            chunk_elements(layout, self._payload)[:] = np.where(rows > 0, above, other)
            self._payload[layout.payload_bytes :] = 0
            owed -= sent
        rows[np.isnan(above[:, 0])] = 0  # what was no number is told, and not owed for ever
        return self._payload

    def settle(self, report: TransferReport) -> None:
        if report.chunks_received != report.chunk_count:
            raise InputError(
                f"filling signs: the transfer to {report.peer} does not say that all chunks have "
                "arrived; valid: with a protocol that delivers all, such as one-bit"
            )


@dataclass(frozen=True, kw_only=True)
class Signs(Zero):
    """Sends one of two values for each element, and owes the error; for what delivers all chunks.

    The server has one residual for all workers of a broadcast, so replicas stay the same.
    """

    whole = True

    def sender_memory(self, layout: PayloadLayout) -> Quantised:
        return Quantised(layout)
