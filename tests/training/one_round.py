"""One round of filling, for tests: what arrived is written to buffers, the rest is filled."""

import numpy as np

from testbed.training.fillings import FILLINGS
from testbed.transport import TransferReport
from tests.transport.virtual import layout_of

LAYOUT = layout_of(4, last_elements=3)  # 4 chunks, 15 elements


def buffer_of(values, layout=LAYOUT):
    buffer = layout.new_buffer()
    layout.floats(buffer)[:] = values
    return buffer


def estimate(filling, gradients, received, layout=LAYOUT, buffers=None):
    buffers = buffers or [layout.new_buffer() for _ in gradients]
    for buffer, gradient, mask in zip(buffers, gradients, received, strict=True):
        layout.rows(buffer)[mask] = layout.rows(buffer_of(gradient, layout))[mask]
    out = layout.new_buffer()
    filling = FILLINGS.create(filling) if isinstance(filling, str) else filling
    filling.estimate_mean(layout, buffers, received, out)
    return layout.floats(out)


def gradients_of(workers, layout=LAYOUT, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(1.0, 1.0, size=(workers, layout.element_count)).astype(np.float32)


def report(received, peer="server", chunks_received=None):
    """It is what a sender learns of a transfer; times and bytes mean nothing here."""
    return TransferReport(
        transfer=0,
        peer=peer,
        role="sender",
        chunk_count=4 if received is None else len(received),
        chunks_received=chunks_received if received is None else int(np.sum(received)),
        received=received,
        passes=1,
        chunks_sent=4,
        bytes_sent=0,
        bytes_received=0,
        control_bytes=0,
        duplicates=0,
        retransmitted_bytes=0,
        began_s=0.0,
        ended_s=0.0,
    )
