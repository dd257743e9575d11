"""The interface of fillings, which make up for the chunks that did not arrive on one leg.

The receiver's half estimates the mean of the sent payloads from what arrived: the server has one
per worker, a worker the server's alone. The sender's half may remember what was lost. A `Filling`
is usually a frozen dataclass whose fields are its options.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.shared import own_code
from testbed.transport import PayloadLayout, TransferReport

Buffer = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Buffers = Sequence[Buffer]  # one for each sender, as masks are
Masks = Sequence[Mask]


class SenderMemory:
    """The sender's half for one peer. This base class remembers nothing.

    Attributes:
        shared: whether one serves all receivers of a broadcast, whatever they got.
    """

    shared = False

    def payload(self, gradient: Buffer) -> Buffer:
        """The payload to send for a gradient. Neither may change before the transfer ends."""
        return gradient

    def settle(self, report: TransferReport) -> None:
        """Called with the report of the ended transfer."""


class Filling(ABC):
    """One kind of filling, for one leg and the whole run.

    Attributes:
        common: whether, of a broadcast, all workers are to have the same chunks; others are then
            lost to all, and the server has one memory for all.
        whole: whether it needs a leg that delivers all chunks.
    """

    common = False
    whole = False

    def begin_round(  # noqa: B027 - optional to override
        self, critical: bool, draws: np.random.Generator
    ) -> None:
        """The server: called before `estimate_mean` of each gather, with draws of this round."""

    @abstractmethod
    def estimate_mean(
        self, layout: PayloadLayout, buffers: Buffers, received: Masks, out: Buffer
    ) -> None:
        """Writes an estimate of the mean of the payloads to `out`.

        Args:
            layout: of all buffers.
            buffers: what arrived, one buffer per sender, in the same order and the same memory in
                every round. Parts that did not arrive are as this filling left them in the
                previous round (zero in the first). They may be modified.
            received: one flag per chunk, for each sender.
            out: another buffer, or one of `buffers`.
        """

    def sender_memory(self, layout: PayloadLayout) -> SenderMemory:
        """The sender's half for one peer; the default remembers nothing."""
        return SenderMemory()


class Unread(Filling):
    """For payloads that nobody computes with."""

    def estimate_mean(
        self, layout: PayloadLayout, buffers: Buffers, received: Masks, out: Buffer
    ) -> None:
        """There is nothing to estimate."""


def zero_missing(layout: PayloadLayout, buffers: Buffers, received: Masks) -> None:
    """Sets the parts that did not arrive to zero, in place."""
    for buffer, mask in zip(buffers, received, strict=True):
        layout.rows(buffer)[~mask] = 0


def chunk_elements(layout: PayloadLayout, buffer: Buffer) -> NDArray[np.float32]:
    """A buffer's elements by chunk, padding included: shape (chunk_count, elements_per_chunk)."""
    return layout.rows(buffer).view("<f4")


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
