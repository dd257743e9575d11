"""The interface of fillings, which make up for the chunks that did not arrive on one leg.

The receiver's half estimates the mean of the sent payloads from what arrived: the server has one
payload per worker, a worker the server's alone. The sender's half may remember what was lost.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.shared import own_code
from testbed.transport import PayloadLayout, TransferReport

Vector = NDArray[np.float32]  # flat
Buffer = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Buffers = Sequence[Buffer]  # one for each sender, as masks are
Masks = Sequence[Mask]

# So many elements of a few vectors fit a processor's cache, so each is read from memory once.
_BLOCK = 1 << 14


class SenderMemory:
    """The sender's half for one peer. This base class remembers nothing."""

    shared = False  # whether one serves all receivers of a broadcast, whatever they got
    # Whether it owes what the protocol's codec loses: then `rounded` holds it when `settle` is
    # called, each value of the payload less what was sent of it. None: nothing, as with float32.
    keeps_rounding = False
    rounded: Buffer | None = None

    def payload(self, gradient: Buffer) -> Buffer:
        """The payload to send for a gradient. Neither may change before the transfer ends."""
        return gradient

    def settle(self, report: TransferReport) -> None:
        """Called with the report of the ended transfer."""


class Filling(ABC):
    """One kind of filling, for one leg and the whole run: often a dataclass of its options."""

    # Whether, of a broadcast, all workers are to have the same chunks; others are then lost to all,
    # and the server has one memory for all.
    common = False

    @abstractmethod
    def estimate_mean(
        self, layout: PayloadLayout, buffers: Buffers, received: Masks, out: Buffer
    ) -> None:
        """Writes an estimate of the mean of the payloads to `out`.

        Args:
            layout: of all buffers; its codec is float32, whatever travelled.
            buffers: what arrived, one buffer per sender, in the same order and the same memory in
                every round. Parts that did not arrive are as this filling left them in the
                previous round (zero in the first). They may be modified.
            received: one flag per chunk, for each sender.
            out: another buffer, or one of `buffers`.
        """

    def sender_memory(self, layout: PayloadLayout) -> SenderMemory:
        """The sender's half for one peer; the default remembers nothing."""
        return SenderMemory()


def estimate_mean(
    filling: Filling, layout: PayloadLayout, buffers: Buffers, received: Masks, *, out: Buffer
) -> None:
    """Lets a filling write its estimate to `out`; InputError when it returns one instead."""
    returned: object = filling.estimate_mean(layout, buffers, received, out)
    if returned is not None:
        raise own_code.unfit(filling, "estimate_mean", returned, "None: it writes to `out`")


def payload_of(memory: SenderMemory, gradient: Buffer) -> Buffer:
    """The payload that a sender's half makes of a gradient; InputError for another buffer."""
    payload = memory.payload(gradient)
    if not (
        isinstance(payload, np.ndarray)
        and payload.dtype == gradient.dtype
        and payload.shape == gradient.shape
    ):
        expected = f"bytes like those that it was given, of shape {gradient.shape}"
        raise own_code.unfit(memory, "payload", payload, expected)
    return payload


# Vectors and chunks.


def chunk_elements(layout: PayloadLayout, buffer: Buffer) -> Vector:
    """A buffer's elements by chunk, padding included: shape (chunk_count, elements_per_chunk)."""
    return layout.rows(buffer).view("<f4")


def zero_missing(layout: PayloadLayout, buffers: Buffers, received: Masks) -> None:
    """Sets the parts that did not arrive to zero, in place."""
    for buffer, mask in zip(buffers, received, strict=True):
        layout.rows(buffer)[~mask] = 0


def all_finite(vector: Vector) -> bool:
    """It is true if no element is NaN or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        # The sum alone would do, but it may overflow. It needs no memory.
        return bool(np.isfinite(vector.sum()) or np.isfinite(vector).all())


def sum_into(gradients: Sequence[Vector], out: Vector) -> None:
    """Writes the sum of equally long vectors to `out`, which may be one of them."""
    for block in _blocks(out):
        _sum_block(gradients, out, block)


def mean_into(gradients: Sequence[Vector], out: Vector) -> None:
    """Writes the mean of equally long vectors to `out`, with the same order of additions."""
    count = np.float32(len(gradients))
    for block in _blocks(out):
        _sum_block(gradients, out, block)
        out[block] /= count


def _blocks(vector: Vector) -> Iterator[slice]:
    return (slice(at, at + _BLOCK) for at in range(0, len(vector), _BLOCK))


# In a fixed order, so that every reliable transport gives the same bits.
def _sum_block(gradients: Sequence[Vector], out: Vector, block: slice) -> None:
    if len(gradients) == 1:
        out[block] = gradients[0][block]
        return
    total = gradients[0][block] + gradients[1][block]
    for gradient in gradients[2:]:
        total += gradient[block]
    out[block] = total
