"""Each side's codec: what is applied and what is owed are the sum of all gradients."""

import numpy as np
import pytest

from testbed.training.coding import Incoming, Outgoing
from testbed.training.fillings import FILLINGS
from testbed.transport import PayloadLayout
from testbed.transport.codec import CODECS
from tests.training.one_round import estimate, report

CODED = [name for name in CODECS if name != "float32"]


def layout_of(codec):
    return PayloadLayout([("a", 700), ("b", 300)], 112, codec)


def plain_buffer(layout, values):
    layout.plain.floats(buffer := layout.plain.new_buffer())[:] = values
    return buffer


def rounds(codec, filling, *, loss, count=60, seed=0):
    """It returns the sums of gradients and of what is applied, and the sender's memory."""
    layout, draws = layout_of(codec), np.random.default_rng(seed)
    side = Outgoing(FILLINGS.create(filling).sender_memory(layout.plain), layout, seed=seed)
    incoming = Incoming(layout, layout.new_buffer(), layout.plain.new_buffer())
    total, applied = np.zeros(1000), np.zeros(1000)
    for transfer in range(count):
        gradient = draws.normal(0.3, 1, 1000).astype(np.float32)
        payload = side.payload(plain_buffer(layout, gradient), transfer)
        received = draws.random(layout.chunk_count) >= loss
        layout.rows(incoming.buffer)[received] = layout.rows(payload)[received]
        incoming.read(received)
        values = layout.plain.floats(incoming.values).copy()
        applied += estimate("zero", [values], [received], layout.plain)
        side.settle(report(received))
        total += gradient
    return total, applied, side.memory


@pytest.mark.parametrize("codec", CODED)
@pytest.mark.parametrize("loss", [0, 0.4])
def test_error_feedback_owes_what_is_lost_and_what_is_rounded(codec, loss):
    total, applied, memory = rounds(codec, "error-feedback", loss=loss)
    owed = layout_of(codec).plain.floats(memory.residual)
    assert np.allclose(applied + owed, total, atol=1e-3)
    assert np.abs(owed).max() > 0
    assert not np.allclose(applied, total, atol=1e-5)


@pytest.mark.parametrize(("codec", "step"), [("int8", 4 / 127), ("int4", 4 / 7)])
def test_without_feedback_whole_numbers_lose_nothing_on_the_average(codec, step):
    total, applied, memory = rounds(codec, "zero", loss=0, count=400)
    assert memory.rounded is None
    error = (applied - total) / 400
    assert abs(error.mean()) < step / np.sqrt(400 * 1000)
    assert error.std() < step / np.sqrt(400)


def test_a_nan_is_sent_once_and_owed_to_nobody():
    layout = layout_of("int4")
    side = Outgoing(FILLINGS.create("error-feedback").sender_memory(layout.plain), layout)
    received = np.ones(layout.chunk_count, dtype=np.bool_)
    gradient = np.ones(1000, np.float32)
    gradient[5] = np.nan
    assert np.isnan(layout.read(side.payload(plain_buffer(layout, gradient), 0))[:216]).all()
    side.settle(report(received))
    later = layout.read(side.payload(plain_buffer(layout, np.ones(1000, np.float32)), 1))
    assert np.allclose(later, 1)


def test_two_senders_round_otherwise_and_one_alike():
    layout, gradient = layout_of("int4"), np.linspace(-1, 1, 1000, dtype=np.float32)

    def payload(seed, transfer):
        side = Outgoing(FILLINGS.create("zero").sender_memory(layout.plain), layout, seed=seed)
        return side.payload(plain_buffer(layout, gradient), transfer).tobytes()

    assert payload(1, 4) == payload(1, 4)
    assert len({payload(1, 4), payload(2, 4), payload(1, 6)}) == 3


def test_what_is_not_computed_with_is_not_coded():
    layout = layout_of("int4")
    memory, unread = FILLINGS.create("zero").sender_memory(layout.plain), layout.new_buffer()
    side = Outgoing(memory, layout, unread=unread)
    assert side.payload(plain_buffer(layout, 1.0), 0) is unread and not unread.any()


def test_float32_travels_without_a_copy():
    layout = layout_of("float32")
    side = Outgoing(FILLINGS.create("zero").sender_memory(layout.plain), layout)
    values = plain_buffer(layout, 1.0)
    assert side.payload(values, 0) is values
