"""What chunks are worth: the bytes, and the message that says them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport import PayloadLayout, ProtocolError
from testbed.transport.core import worth
from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.policies.tolerance import BoundedEnergy
from tests.transport.energy_rounds import ARM, CHUNKS, Rounds
from tests.transport.transfer_parts import all_frames, new_receiver
from tests.transport.two_parties import ended
from tests.transport.virtual import layout_of, random_payload


@given(st.lists(st.floats(0, 1e12, allow_subnormal=False), min_size=1, max_size=50))
def test_an_energy_lies_between_the_bounds_of_its_byte(energies):
    energy = np.array(energies)
    coded = worth.encode(energy)
    assert (worth.LEAST[coded] * energy.max() <= energy).all()
    assert (energy <= worth.MOST[coded] * energy.max()).all()
    assert (coded < worth.MUST).all()


def test_what_is_no_number_must_arrive_and_zeros_are_worth_nothing():
    rows = np.ones((4, 8), "<f4")
    rows[1], rows[2, 3], rows[3, 0] = 0, np.nan, 3e38
    coded = worth.encode(worth.energies(rows.view(np.uint8)))
    assert coded.tolist() == [1, 0, worth.MUST, worth.MUST - 1]


def test_what_chunks_are_worth_may_come_before_it_is_asked_for():
    rounds = Rounds()
    transfer, payload = 0, random_payload(rounds.layout)
    rounds.worker.connection.post_send(transfer, payload, 0.0)
    rounds.worker.work()
    rounds.run(until_s=1.0)
    into = rounds.layout.new_buffer()
    rule = ARM.gather.stop_rule(False)(rounds.layout)
    rounds.server.connection.post_receive(transfer, rule, into, 1.0)
    rounds.server.work()
    assert ended(rounds.server) == [transfer]  # at once: all that is needed lay there


def test_it_is_said_once_and_of_each_chunk():
    layout = layout_of(3)
    receiver, _ = new_receiver(layout, rule=BoundedEnergy().stop_rule(False)(layout))
    with pytest.raises(ProtocolError, match="WORTH with a body of 2 bytes; valid: 3"):
        receiver.on_message(ControlMessage(MessageType.WORTH, 6, b"\1\1"), 0.0)
    receiver.on_message(ControlMessage(MessageType.WORTH, 6, b"\177\177\377"), 0.0)
    with pytest.raises(ProtocolError, match="valid: 3, once a transfer"):
        receiver.on_message(ControlMessage(MessageType.WORTH, 6, b"\177\177\377"), 0.0)
    receiver.on_datagrams(all_frames(layout), 0.0)
    assert receiver.stopped


def unasked(*bodies, **settings):
    """A server that was told of so many transfers what nobody has asked for: transfer and body."""
    rounds = Rounds(**settings)
    for transfer, body in bodies:
        message = ControlMessage(MessageType.WORTH, transfer, body)
        rounds.server.connection.on_control(message.encode(), 0.0)
    return rounds.server.connection


def post(connection, transfer):
    layout = layout_of(CHUNKS)
    connection.post_receive(transfer, ARM.gather.stop_rule(False)(layout), layout.new_buffer(), 0.0)


WORTH = b"\177" * CHUNKS


def test_worth_of_a_transfer_that_is_skipped_is_refused():
    connection = unasked((2, WORTH))
    assert connection.lost is None
    post(connection, 4)
    assert "it sends transfer 2, which this side has skipped: it is at 4" in str(connection.lost)


@pytest.mark.parametrize("bodies", [[WORTH, WORTH], [WORTH[1:]]])
def test_worth_that_no_transfer_would_take_is_refused_before_it_is_asked_for(bodies):
    connection = unasked(*((2, body) for body in bodies))
    assert f"bytes; valid: {CHUNKS}, once a transfer" in str(connection.lost)


def test_a_peer_may_tell_ahead_of_no_more_transfers_than_may_be_in_flight():
    three = [(number, WORTH) for number in (2, 4, 6)]
    connection = unasked(*three, transfers_in_flight=2)
    assert "WORTHs for 3 transfers that nobody asked for; valid: at most 2" in str(connection.lost)
    connection = unasked(*three[:2], transfers_in_flight=2)
    assert connection.lost is None
    post(connection, 2)  # which makes room
    connection.on_control(ControlMessage(MessageType.WORTH, 6, WORTH).encode(), 0.0)
    assert connection.lost is None


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 10_000))
def test_per_tensor_each_counts_for_its_elements(sizes, seed):
    draws = np.random.default_rng(seed)
    layout = PayloadLayout([(str(place), size) for place, size in enumerate(sizes)], 32)
    buffer = layout.new_buffer()
    floats = layout.floats(buffer)
    scales = 10.0 ** draws.integers(-6, 6, len(sizes))
    floats[:] = draws.uniform(1, 2, len(floats)) * np.repeat(scales, sizes)
    rows = layout.rows(buffer)
    energies = worth.by_tensor(worth.energies(rows), rows, layout)
    parts = np.square(floats, dtype=np.float64)
    expected = np.zeros(layout.chunk_count)
    ends = np.cumsum(sizes)
    for end, size in zip(ends, sizes, strict=True):
        part = slice(end - size, end)
        chunk = np.arange(end - size, end) // layout.elements_per_chunk
        np.add.at(expected, chunk, parts[part] / parts[part].mean())
    assert energies == pytest.approx(expected, rel=1e-5)


def test_per_tensor_a_nan_spoils_its_own_chunk_and_zeros_are_nothing():
    layout = PayloadLayout([("broken", 16), ("still", 16), ("sound", 16)], 32)
    buffer = layout.new_buffer()
    floats = layout.floats(buffer)
    floats[:16], floats[32:] = 3.0, 1e-9
    floats[2] = np.nan
    rows = layout.rows(buffer)
    energies = worth.by_tensor(worth.energies(rows), rows, layout)
    assert np.isnan(energies[0])
    assert energies[1:] == pytest.approx([16, 0, 0, 8, 8], rel=1e-5)
