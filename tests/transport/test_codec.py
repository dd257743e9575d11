"""Codecs: what goes in comes out, but for what is owed; C and numpy write the same bytes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.transport import ORDERS, OrderContext, PayloadLayout, chunk_energy, codec, preset
from testbed.transport.codec import CODECS
from tests.transport.loopback import run_all, site

EVERY = list(CODECS)
SCALED = {"int8": 127, "int4": 7}
floats = st.floats(width=32)


def layout_of(count, name, chunk_bytes=64):
    return PayloadLayout([("w", count)], chunk_bytes, name)


def through(layout, values, **seeds):
    """It returns what is read of values, and the residual."""
    buffer, residual = layout.new_buffer(), np.full(layout.element_count, np.nan, np.float32)
    buffer[:] = 0xFF
    layout.write(values, buffer, residual=residual, **seeds)
    assert not buffer[layout.payload_bytes :].any()
    return layout.read(buffer), residual


def normal(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


@pytest.mark.parametrize("name", EVERY)
@given(st.lists(floats, min_size=1, max_size=1000), st.sampled_from([12, 60, 64, 1456]), st.data())
@settings(max_examples=60, deadline=None)
def test_c_and_numpy_write_and_read_the_same_bytes(name, values, chunk_bytes, data):
    if codec.LIBRARY is None:
        pytest.skip(f"no C: {codec.WHY_NONE}")
    repeated = np.resize(np.array(values, np.float32), data.draw(st.integers(1, 3000)))
    layout = layout_of(len(repeated), name, chunk_bytes)
    chosen = np.random.default_rng(len(values)).random(layout.chunk_count) < 0.5
    both = []
    for library in (codec.LIBRARY, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codec, "LIBRARY", library)
            buffer, residual = layout.new_buffer(), np.empty_like(repeated)
            buffer[:] = 0xAB if library is None else 0  # the whole of it is written
            layout.write(repeated, buffer, seed=3, transfer=8, residual=residual)
            out = np.ones_like(repeated)
            layout.read(buffer, out, received=chosen)
            both.append([array.tobytes() for array in (buffer, residual, out, layout.read(buffer))])
    assert both[0] == both[1]


@pytest.mark.parametrize("name", EVERY)
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=300))
def test_what_is_read_and_the_residual_are_the_values(name, values):
    values = np.array(values, np.float32)
    read, residual = through(layout_of(len(values), name), values)
    if name in SCALED or name == "one-bit":  # a sum of two floats of the chunk's size is rounded
        close = np.abs(values).max() * 2e-7
        assert np.allclose(read.astype(np.float64) + residual, values, rtol=1e-6, atol=close)
    else:
        assert np.array_equal(read + residual, values)
    assert np.array_equal(residual, values - read)


@pytest.mark.parametrize(("name", "most"), SCALED.items())
def test_whole_numbers_are_off_by_less_than_one_and_scaled_by_the_largest(name, most):
    layout, values = layout_of(5000, name), normal(5000)
    values[17] = 0
    read, _ = through(layout, values)
    size = layout.elements_per_chunk
    chunks = np.array_split(np.arange(5000), range(size, 5000, size))
    for chunk in chunks:
        step = np.abs(values[chunk]).max() / most
        assert (np.abs(read[chunk] - values[chunk]) < step * 1.00001).all()
        assert np.abs(read[chunk]).max() == pytest.approx(step * most, rel=1e-6)
        assert np.allclose(read[chunk] / step, np.round(read[chunk] / step), atol=1e-3)
    assert read[17] == 0


@pytest.mark.parametrize("name", SCALED)
def test_rounding_by_chance_has_the_value_as_expectation(name):
    layout, values = layout_of(400, name), normal(400)
    reads = np.array([through(layout, values, seed=1, transfer=n)[0] for n in range(3000)])
    error = reads.mean(axis=0, dtype=np.float64) - values
    of_mean = reads.std(axis=0, dtype=np.float64) / np.sqrt(len(reads))
    drawn = of_mean > 1e-6  # not the largest of a chunk, which is exact
    assert np.abs(error[~drawn]).max() < 1e-6 < 1e-4 < of_mean.max()
    assert 0.7 < np.mean((error[drawn] / of_mean[drawn]) ** 2) < 1.3
    # Nor have the errors of neighbours, or of two transfers, anything in common.
    errors = (reads - values)[:, drawn]
    errors /= errors.std(axis=0)
    assert abs(np.mean(errors[:, 1:] * errors[:, :-1])) < 0.01
    assert abs(np.mean(errors[1:] * errors[:-1])) < 0.01


@pytest.mark.parametrize("name", SCALED)
def test_draws_follow_from_seed_and_transfer_alone(name):
    layout, values = layout_of(1000, name), normal(1000)
    first, _ = through(layout, values, seed=1, transfer=2)
    assert np.array_equal(first, through(layout, values, seed=1, transfer=2)[0])
    for other in (
        {"seed": 2, "transfer": 2},
        {"seed": 1, "transfer": 3},
        {"seed": 2, "transfer": 1},
    ):
        assert not np.array_equal(first, through(layout, values, **other)[0])


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", "bfloat16"), ("float16", "float16")])
def test_halves_are_rounded_as_torch_casts(name, dtype):
    words = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    values = words.view(np.float32)
    ties = (words & np.uint32(0xFFFFE000) | np.uint32(0x1000)).view(np.float32)
    values = np.concatenate(
        [values, ties, normal(1000), np.array([0, -0.0, 1e-42, -6e-8], np.float32)]
    )
    limit = 65504 if name == "float16" else np.float32(3.3895314e38)
    values = values[np.abs(values) <= limit]  # NaN goes, too
    layout = layout_of(len(values), name)
    layout.write(values, buffer := layout.new_buffer())
    cast = torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.int16).numpy()
    assert np.array_equal(buffer.view(np.int16)[: len(values)], cast)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_halves_carry_what_is_no_number_and_owe_what_is_too_large(name):
    largest = np.float32({"bfloat16": 3.3895314e38, "float16": 65504}[name])
    values = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1], np.float32)
    read, residual = through(layout_of(6, name), values)
    expected = np.array([np.nan, np.inf, -np.inf, largest, -largest, 1], np.float32)
    assert np.array_equal(read, expected, equal_nan=True)
    assert np.array_equal(residual[:3], np.zeros(3)) and residual[5] == 0
    assert np.array_equal(residual[3:5], values[3:5] - expected[3:5]) and residual[3] > 0


@pytest.mark.parametrize("name", ["int8", "int4", "one-bit"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_chunk_with_what_is_no_number_is_nan_and_owes_nothing(name, odd):
    layout = layout_of(2000, name, 56)
    values, size = normal(2000), layout.elements_per_chunk
    values[size + 3] = odd
    read, residual = through(layout, values)
    gone = slice(size, 2 * size)
    assert np.isnan(read[gone]).all() and not residual[gone].any()
    assert np.isfinite(np.delete(read, np.arange(2000)[gone])).all()


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize(("value", "read"), [(0, 0), (1e-40, 0), (3.4028235e38, 3.4028235e38)])
def test_the_least_and_the_largest_numbers(name, value, read):
    values = np.full(30, value, np.float32)
    values[1] *= -1
    got, residual = through(layout_of(30, name), values)
    assert np.allclose(got, np.sign(values) * np.float32(read), rtol=1e-6)
    assert np.array_equal(residual, values - got)


def test_one_bit_sends_the_means_of_what_is_above_zero_and_of_the_others():
    values = normal(1000)
    values[:5] = 0
    read, residual = through(layout_of(1000, "one-bit", 1456), values)
    for first in range(0, 1000, 384):  # whatever a chunk holds
        part = slice(first, first + 384)
        above = values[part] > 0
        means = values[part][above].mean(dtype=float), values[part][~above].mean(dtype=float)
        assert np.allclose(read[part], np.where(above, *means), rtol=1e-6)
    assert abs(residual.mean(dtype=float)) < 1e-7


@pytest.mark.parametrize("name", EVERY)
def test_lengths_and_elements_fit_the_buffer(name):
    for chunk_bytes in range(12, 200, 4):
        per_chunk = CODECS.create(name).elements(chunk_bytes)
        for count in (1, per_chunk - 1, per_chunk, per_chunk + 1, 3 * per_chunk):
            layout = layout_of(max(1, count), name, chunk_bytes)
            assert int(layout.chunk_lengths.sum()) == layout.payload_bytes
            assert int(layout.chunk_elements.sum()) == layout.element_count
            assert 0 < layout.chunk_lengths[-1] <= chunk_bytes
            plain = layout.plain
            assert plain.chunk_count == layout.chunk_count and plain.tensors == layout.tensors
            assert np.array_equal(plain.chunk_elements, layout.chunk_elements)


@pytest.mark.parametrize("name", EVERY)
def test_values_of_chunks_are_those_that_are_read(name):
    layout, values = layout_of(1001, name), normal(1001)
    layout.write(values, buffer := layout.new_buffer())
    expected = np.zeros(layout.chunk_count * layout.elements_per_chunk, np.float32)
    expected[:1001] = layout.read(buffer)
    expected = expected.reshape(layout.chunk_count, -1)
    rows = layout.rows(buffer)
    last = layout.chunk_count - 1
    for chunks in (slice(0, 2), slice(None), slice(0, 0), np.array([1, last]), np.array([last])):
        assert np.array_equal(layout.chunk_values(rows, chunks), expected[chunks])


def test_values_in_any_order_of_memory_are_written():
    layout, values = layout_of(50, "int8"), normal(100)
    layout.write(values[::2], one := layout.new_buffer())
    layout.write(values[::2].copy(), two := layout.new_buffer())
    assert np.array_equal(one, two)


@pytest.mark.parametrize("wrong", [normal(49), normal(50).astype(np.float64), normal(100)[::2]])
def test_memory_of_another_form_is_refused(wrong):
    layout = layout_of(50, "int8")
    buffer = layout.new_buffer()
    with pytest.raises(ValueError, match="valid: 50 contiguous float32"):
        layout.read(buffer, wrong)
    with pytest.raises(ValueError, match="valid: 50 contiguous float32"):
        layout.write(normal(50), buffer, residual=wrong)


def test_floats_are_for_float32_alone():
    layout = layout_of(50, "int8")
    with pytest.raises(ValueError, match="a buffer of int8; valid: float32, or write and read"):
        layout.floats(layout.new_buffer())


def test_float32_shares_its_memory():
    layout = layout_of(50, "float32")
    buffer, other = layout.new_buffer(), layout.new_buffer()
    values = layout.floats(buffer)
    values[:] = normal(50)
    layout.write(values, buffer)
    assert np.shares_memory(layout.read(buffer), buffer)
    layout.write(values, other)
    assert np.array_equal(other, buffer)


def test_two_sides_must_have_the_same_codec():
    one, two = layout_of(50, "int4"), layout_of(50, "int8")
    assert one.difference(two, ("here", "there")) == "codec is int4 at here and int8 at there"
    assert PayloadLayout.decode(one.encode()) == one


@pytest.mark.parametrize(
    ("name", "chunk_bytes", "message"),
    [
        (
            "int5",
            64,
            "unknown codec 'int5'; valid: float32, bfloat16, float16, int8, int4, one-bit",
        ),
        ("int4", 4, "chunk_bytes is 4, in which int4 puts no element"),
        ("one-bit", 8, "chunk_bytes is 8, in which one-bit puts no element"),
    ],
)
def test_what_no_layout_can_be_is_refused(name, chunk_bytes, message):
    with pytest.raises(ValueError, match=message):
        layout_of(50, name, chunk_bytes)


@pytest.mark.parametrize("name", EVERY)
def test_energies_and_magnitudes_are_those_of_what_is_read(name):
    layout = PayloadLayout([("w", 3000), ("v", 1001)], 112, name)
    values = normal(4001) * np.repeat(np.geomspace(1, 1e-3, 41), 100)[:4001].astype(np.float32)
    layout.write(values, buffer := layout.new_buffer())
    rows = layout.rows(buffer)
    read = np.zeros(layout.chunk_count * layout.elements_per_chunk)
    read[:4001] = layout.read(buffer)
    by_chunk = read.reshape(layout.chunk_count, -1)
    energy = chunk_energy.energies(rows, layout)
    assert np.allclose(energy, np.square(by_chunk).sum(axis=1), rtol=1e-5)
    per_tensor = chunk_energy.by_tensor(energy, rows, layout)
    means = [np.square(part).mean() for part in (read[:3000], read[3000:4001])]
    scaled = np.square(read) / np.repeat([*means, 1], [3000, 1001, len(read) - 4001])
    assert np.allclose(per_tensor, scaled.reshape(layout.chunk_count, -1).sum(axis=1), rtol=1e-4)
    context = OrderContext(transfer=0, layout=layout, rows=rows)
    order = ORDERS.create("largest-magnitude-first").permutation(context)
    mean = np.abs(by_chunk).sum(axis=1) / layout.chunk_elements
    assert (np.diff(mean[order]) <= 1e-6).all()


def test_an_endpoint_needs_a_layout_of_the_protocols_codec():
    with pytest.raises(ValueError, match="layout has the codec float32; valid: int4, as the pro"):
        site(preset("dblp", codec="int4")).server()


@pytest.mark.parametrize("protocol", [preset("dblp", low=0, high=0), preset("top-k", keep=0.3)])
def test_both_carriers_bring_a_coded_payload_as_it_was_written(protocol):
    coded = replace(protocol, codec="int4")
    layout = PayloadLayout([("w", 100_001)], codec="int4")
    layout.write(normal(100_001), sent := layout.new_buffer())
    place = site(coded, layout=layout)

    def server(endpoint):
        endpoint.receive(0, 0, {"worker-1": (buffer := layout.new_buffer())})
        return buffer

    gathered, [report] = run_all(
        place, server, lambda endpoint, index: endpoint.send(0, {"server": sent})["server"]
    )
    chosen = np.ones(layout.chunk_count, np.bool_) if report.received is None else report.received
    assert np.array_equal(layout.rows(gathered)[chosen], layout.rows(sent)[chosen])
    assert not layout.rows(gathered)[~chosen].any()
    assert report.bytes_sent < 100_001 * 0.6


def test_small_numbers_arrive_where_a_thread_takes_denormal_ones_for_zero():
    values = np.array([3e-5, 1e-6, -1e-5, 6e-8, 1e-3], np.float32)
    layout = PayloadLayout([("a", len(values))], codec="float16")
    buffer = layout.new_buffer()
    layout.write(values, buffer)
    torch.set_flush_denormal(True)
    try:
        read = layout.read(buffer)
    finally:
        torch.set_flush_denormal(False)
    assert np.array_equal(read, values.astype(np.float16).astype(np.float32))
