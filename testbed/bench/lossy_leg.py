"""A leg of the rounds in one process, with a receiver's stop in place of the network.

Every transfer loses exactly what a receiver of tolerance P gives up, for one of two causes. On
links without loss it stops when 1 - P of the chunks are there, and they come in the order in which
they were sent. On lossy links what is missing at that moment is random, for each receiver by
itself. With `link_loss` it is both: a link loses some of what is sent before the receiver stops.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.training.filling import Buffer, Filling, estimate_mean, payload_of
from testbed.transport import Leg, PayloadLayout, TransferReport
from testbed.transport.core import worth
from testbed.transport.core.order import ChunkOrder, OrderContext
from testbed.transport.core.tolerance import required_chunks


class LossyLeg:
    """One direction of the rounds: several senders, one receiver.

    Args:
        layout: of all payloads.
        leg: which direction.
        filling: of this leg; its senders' halves are made here.
        orders: one for each sender.
        random: draws what is lost where the network loses it; None: the receiver stops early.
        link_loss: the probability that a chunk is lost on its way, below 1; `random` draws it, and
            the order is the orders'. What is given up in all stays the tolerance.
        energy_share: a receiver stops at this share of the energy instead, whatever the tolerance.
    """

    def __init__(
        self,
        layout: PayloadLayout,
        leg: Leg,
        filling: Filling,
        orders: Sequence[ChunkOrder],
        random: np.random.Generator | None = None,
        link_loss: float = 0.0,
        energy_share: float | None = None,
    ) -> None:
        self._link_loss, self._energy_share = link_loss, energy_share
        self.sent_chunks = self.lost_chunks = 0
        self._layout, self._leg, self._filling = layout, leg, filling
        self._orders, self._random = orders, random
        self._memories = [filling.sender_memory(layout) for _ in orders]
        self._buffers = [layout.new_buffer() for _ in orders]

    def pass_on(
        self, round_number: int, payloads: Sequence[Buffer], tolerance: float, out: Buffer
    ) -> None:
        """Send each payload, and write the estimate of their mean to `out`."""
        received = []
        for sender, payload in enumerate(payloads):
            memory = self._memories[sender]
            sent = payload_of(memory, payload)
            received.append(self._deliver(round_number, sender, sent, tolerance))
            memory.settle(_report(received[-1]))
        estimate_mean(self._filling, self._layout, self._buffers, received, out=out)

    def _deliver(
        self, round_number: int, sender: int, payload: Buffer, tolerance: float
    ) -> NDArray[np.bool_]:
        layout = self._layout
        rows = layout.rows(payload)
        if self._random is not None and not self._link_loss:
            order = self._random.permutation(layout.chunk_count)
        else:
            context = OrderContext(
                transfer=self._leg.transfer(round_number), layout=layout, rows=rows
            )
            order = self._orders[sender].permutation(context)
        enough = required_chunks(layout.chunk_count, tolerance)
        if self._energy_share is not None:
            held = np.cumsum(np.nan_to_num(worth.energies(rows)[order]))
            enough = int(np.searchsorted(held, self._energy_share * held[-1])) + 1
        mask = self._arrivals(order, enough)
        layout.rows(self._buffers[sender])[mask] = rows[mask]
        self.sent_chunks += layout.chunk_count
        self.lost_chunks += layout.chunk_count - enough
        return mask

    def _arrivals(self, order: NDArray[np.int64], enough: int) -> NDArray[np.bool_]:
        """What is there when the receiver stops: pass after pass over what the link has lost."""
        mask = np.zeros(len(order), dtype=np.bool_)
        missing, count = order, 0
        while count < enough:
            on_time = missing
            if self._random is not None and self._link_loss:
                # Drawn by chunk, so that trainings which differ in order alone lose the same ones.
                draws = self._random.random(len(order))
                on_time = missing[draws[missing] >= self._link_loss]
            mask[on_time[: enough - count]] = True
            count = int(np.count_nonzero(mask))
            missing = missing[~mask[missing]]
        return mask


def _report(received: NDArray[np.bool_]) -> TransferReport:
    """What a sender learns of a transfer; times and bytes mean nothing here."""
    return TransferReport(
        transfer=0,
        peer="receiver",
        role="sender",
        chunk_count=len(received),
        chunks_received=int(received.sum()),
        received=received,
        passes=1,
        chunks_sent=len(received),
        bytes_sent=0,
        bytes_received=0,
        control_bytes=0,
        duplicates=0,
        retransmitted_bytes=0,
        began_s=0.0,
        ended_s=0.0,
    )
