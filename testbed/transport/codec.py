"""Codecs: how a chunk holds float32 values. The layout of a payload names one.

All chunks have the same bytes, whatever the codec, and a smaller codec puts more elements in each:

    float32            the values
    bfloat16, float16  half of the bits, rounded to the nearest, ties to even
    int8, int4         f32 scale | whole numbers, up to 127 or 7 in size, the lower 4 bits first
    one-bit            groups: f32 mean above 0 | f32 mean of the others | a bit for each of 384

All is little-endian. int8 and int4 round up or down by chance, so that the expectation is the
value; the draws follow from a seed, the transfer and the element's place. What is finite stays so:
too large for a float16, it becomes the largest. bfloat16 and float16 carry NaN and infinity. In the
other codecs a value that is no finite number makes its chunk, or its group, NaN: datagrams have one
size, so such a chunk cannot travel as float32. What a codec lost of finite values is the
*residual*, each value less what is read of it; it is 0 where NaN or infinity was sent.

`native/codec.c` does the same, with equal bytes. To add a codec: a class here, in both.
"""

import ctypes
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from testbed.shared.registry import Registry
from testbed.transport.compiled import SOURCES, address_of, load, structure

Rows = NDArray[np.uint8]  # chunks, shape (chunk_count, chunk_bytes)
Vector = NDArray[np.float32]
Keys = tuple[int, int]  # 32 bits each, from which draws follow

LIBRARY, WHY_NONE = load(
    SOURCES / "codec.c", [("write_chunks", "-", "ai"), ("read_chunks", "-", "ai")]
)
if sys.byteorder != "little":
    LIBRARY, WHY_NONE = None, "the processor is not little-endian"
_BLOCK = 1 << 18  # elements that numpy works on at a time
_MASK_64 = (1 << 64) - 1
_LANES = 8


class Codec(ABC):
    """One way to write values as bytes; it has no state."""

    code: int  # in a HELLO, and in C
    head_bytes = 0  # of a chunk
    bits: int  # of an element

    def elements(self, chunk_bytes: int) -> int:
        """Elements of a chunk of so many bytes; 0 or less: it is too short."""
        return (chunk_bytes - self.head_bytes) * 8 // self.bits

    def length(self, elements: int) -> int:
        """Bytes that a chunk with so many elements takes."""
        return self.head_bytes + -(-elements * self.bits // 8)

    @abstractmethod
    def encode(self, values: Vector, first: int, keys: Keys) -> Rows:
        """Writes chunks of n elements: (k, n) to (k, length(n)); the payload's `first` is one's."""

    @abstractmethod
    def decode(self, rows: Rows, elements: int) -> Vector:
        """Reads what `encode` wrote of so many elements a chunk."""


class Float32(Codec):
    """The values as they are."""

    code, bits = 0, 32

    def encode(self, values: Vector, first: int, keys: Keys) -> Rows:
        return values.astype("<f4", copy=False).view(np.uint8)

    def decode(self, rows: Rows, elements: int) -> Vector:
        return rows.view("<f4")


class BFloat16(Codec):
    """Half of the bits, with the range of float32: rounded to the nearest, ties to even."""

    code, bits = 1, 16

    def encode(self, values: Vector, first: int, keys: Keys) -> Rows:
        word = values.view(np.uint32)
        rounded = word + np.uint32(0x7FFF) + (word >> np.uint32(16) & np.uint32(1))
        half = (rounded >> np.uint32(16)).astype("<u2")
        too_large = np.isfinite(values) & (half & 0x7FFF == 0x7F80)
        half[too_large] -= 1
        infinite = np.isinf(values)
        half[infinite] = (word[infinite] >> np.uint32(16)).astype(np.uint16)
        half[np.isnan(values)] = 0x7FC0
        return half.view(np.uint8)

    def decode(self, rows: Rows, elements: int) -> Vector:
        return (rows.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


class Float16(Codec):
    """Half of the bits, up to 65504 in size: rounded to the nearest, ties to even."""

    code, bits = 2, 16
    largest = np.float32(65504)

    def encode(self, values: Vector, first: int, keys: Keys) -> Rows:
        finite = np.isfinite(values)
        held = np.where(finite, np.clip(values, -self.largest, self.largest), values)
        half = held.astype("<f2")
        half.view("<u2")[np.isnan(values)] = 0x7E00
        return half.view(np.uint8)

    def decode(self, rows: Rows, elements: int) -> Vector:
        return rows.view("<f2").astype(np.float32)


def draws(first: int, count: int, keys: Keys) -> NDArray[np.uint32]:
    """The draws of elements from `first` on, 32 bits each: MurmurHash3's last steps, with keys."""
    index = np.arange(first, first + count, dtype=np.int64).astype(np.uint32)
    one, two = (np.uint32(key) for key in keys)
    hashed = index ^ one
    hashed ^= hashed >> np.uint32(16)
    hashed *= np.uint32(0x85EBCA6B)
    hashed ^= hashed >> np.uint32(13)
    hashed += two
    hashed *= np.uint32(0xC2B2AE35)
    hashed ^= hashed >> np.uint32(16)
    return hashed


class _Whole(Codec):
    """A scale, and whole numbers from -most to most that times it are the values."""

    head_bytes = 4
    most: int

    def encode(self, values: Vector, first: int, keys: Keys) -> Rows:
        most = np.float32(self.most)
        largest = np.abs(values).max(axis=1, keepdims=True)
        sound = np.isfinite(largest)
        scale = np.where(sound, largest, 0) / most
        # The largest float divided by 7 or 127 may be rounded up, and times that be infinite.
        scale = np.where(np.isinf(scale * most), np.nextafter(scale, np.float32(0)), scale)
        inverse = np.float32(1) / scale
        used = scale >= np.finfo(np.float32).tiny  # a thread may take what is denormal for 0
        chance = (draws(first, values.size, keys) >> np.uint32(8)).astype(np.float32)
        scaled = np.where(sound, values, 0) * np.where(used, inverse, 0)
        scaled += chance.reshape(values.shape) * np.float32(2.0**-24)
        whole = np.clip(np.floor(scaled), -most, most).astype(np.int8)
        head = np.where(sound, np.where(used, scale, 0), np.nan).astype("<f4")
        return np.hstack([head.view(np.uint8), self.pack(whole)])

    def decode(self, rows: Rows, elements: int) -> Vector:
        scale = np.ascontiguousarray(rows[:, : self.head_bytes]).view("<f4")
        return scale * self.unpack(rows[:, self.head_bytes :], elements).astype(np.float32)

    @abstractmethod
    def pack(self, whole: NDArray[np.int8]) -> Rows: ...

    @abstractmethod
    def unpack(self, packed: Rows, elements: int) -> NDArray[np.int8]: ...


class Int8(_Whole):
    """A scale for each chunk, and whole numbers up to 127 in size, rounded by chance."""

    code, bits, most = 3, 8, 127

    def pack(self, whole: NDArray[np.int8]) -> Rows:
        return whole.view(np.uint8)

    def unpack(self, packed: Rows, elements: int) -> NDArray[np.int8]:
        return packed.view(np.int8)


class Int4(_Whole):
    """A scale for each chunk, and whole numbers up to 7 in size, rounded by chance."""

    code, bits, most = 4, 4, 7

    def pack(self, whole: NDArray[np.int8]) -> Rows:
        even = np.pad(whole, ((0, 0), (0, whole.shape[1] % 2))).view(np.uint8)
        return even[:, ::2] & np.uint8(15) | even[:, 1::2] << np.uint8(4)

    def unpack(self, packed: Rows, elements: int) -> NDArray[np.int8]:
        both = np.stack([packed << np.uint8(4), packed], axis=2).reshape(
            len(packed), 2 * packed.shape[1]
        )
        return both[:, :elements].view(np.int8) >> np.int8(4)


class OneBit(Codec):
    """A bit for each element: which of two means of 384 it is, that above 0 or the others'.

    As 1-bit SGD (Seide et al., Interspeech 2014) has it for the columns of a matrix. Means are
    summed in double precision, every eighth element by itself: C does it in the same order.
    """

    code, bits, head_bytes = 5, 1, 8
    group = 384
    group_bytes = head_bytes + group // 8

    def elements(self, chunk_bytes: int) -> int:
        groups, rest = divmod(chunk_bytes, self.group_bytes)
        return groups * self.group + max(0, rest - self.head_bytes) * 8

    def length(self, elements: int) -> int:
        groups, rest = divmod(elements, self.group)
        return groups * self.group_bytes + (super().length(rest) if rest else 0)

    def encode(self, values: Vector, first: int, keys: Keys) -> Rows:
        starts = range(0, values.shape[1], self.group)
        return np.hstack([self._group(values[:, at : at + self.group]) for at in starts])

    def _group(self, values: Vector) -> Rows:
        above = values > 0
        count = np.count_nonzero(above, axis=1)
        means = np.stack(
            [
                _sums(np.where(above, values, 0)) / np.maximum(count, 1),
                _sums(np.where(above, 0, values)) / np.maximum(values.shape[1] - count, 1),
            ],
            axis=1,
        ).astype("<f4")
        means[~np.isfinite(values).all(axis=1)] = np.nan
        return np.hstack([means.view(np.uint8), np.packbits(above, axis=1, bitorder="little")])

    def decode(self, rows: Rows, elements: int) -> Vector:
        values = np.empty((len(rows), elements), dtype=np.float32)
        for at in range(0, elements, self.group):
            part = values[:, at : at + self.group]
            begin = at // self.group * self.group_bytes
            bits = begin + self.head_bytes
            means = np.ascontiguousarray(rows[:, begin:bits]).view("<f4")
            packed = rows[:, bits : begin + super().length(part.shape[1])]
            above = np.unpackbits(packed, axis=1, count=part.shape[1], bitorder="little")
            part[:] = np.where(above, means[:, :1], means[:, 1:])
        return values


def _sums(values: Vector) -> NDArray[np.float64]:
    """The sums of rows, in a fixed order."""
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % _LANES))).astype(np.float64)
    lanes = np.zeros((len(values), _LANES))
    for at in range(0, padded.shape[1], _LANES):
        lanes += padded[:, at : at + _LANES]
    while lanes.shape[1] > 1:
        lanes = lanes[:, ::2] + lanes[:, 1::2]
    return lanes[:, 0]


CODECS: Registry[Codec] = Registry(
    "codec",
    {
        "float32": Float32,
        "bfloat16": BFloat16,
        "float16": Float16,
        "int8": Int8,
        "int4": Int4,
        "one-bit": OneBit,
    },
)


def keys_of(seed: int, transfer: int) -> Keys:
    """Mixes a seed and a transfer's number to two keys, as SplitMix64 mixes its counter."""
    mixed = (int(seed) * 0x9E3779B97F4A7C15 + int(transfer) + 1) * 0x9E3779B97F4A7C15 & _MASK_64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK_64
    mixed ^= mixed >> 31
    return mixed & 0xFFFFFFFF, mixed >> 32


class _Payload(ctypes.Structure):
    _fields_ = [
        *structure(
            (ctypes.c_void_p, "values residual rows chosen"),
            (ctypes.c_int64, "elements chunk_bytes per_chunk"),
        ),
        ("keys", ctypes.c_uint32 * 2),
    ]


def write(
    codec: Codec, values: Vector, rows: Rows, keys: Keys, residual: Vector | None = None
) -> None:
    """Writes contiguous values as chunks; what the last chunk has no use for becomes 0.

    `residual`, as many as there are values and contiguous, takes each value less what is read.
    """
    per_chunk = codec.elements(rows.shape[1])
    used = (len(rows) - 1) * rows.shape[1] + codec.length(len(values) - (len(rows) - 1) * per_chunk)
    rows.reshape(-1)[used:] = 0
    rows[:, codec.length(per_chunk) :] = 0
    if LIBRARY is None or codec.code == Float32.code:
        _write(codec, values, rows, keys, residual)
        return
    payload = _Payload(
        values=address_of(values),
        residual=None if residual is None else address_of(residual),
        rows=address_of(rows),
        elements=len(values),
        chunk_bytes=rows.shape[1],
        per_chunk=per_chunk,
        keys=keys,
    )
    LIBRARY.write_chunks(ctypes.byref(payload), codec.code)


def read(codec: Codec, rows: Rows, values: Vector, chosen: NDArray[np.bool_] | None = None) -> None:
    """Reads the chosen chunks, or all, into contiguous values; the others stay as they are."""
    if LIBRARY is None or codec.code == Float32.code:
        _read(codec, rows, values, chosen)
        return
    if chosen is not None:
        chosen = np.ascontiguousarray(chosen, dtype=np.bool_)
    payload = _Payload(
        values=address_of(values),
        rows=address_of(rows),
        chosen=None if chosen is None else address_of(chosen),
        elements=len(values),
        chunk_bytes=rows.shape[1],
        per_chunk=codec.elements(rows.shape[1]),
    )
    LIBRARY.read_chunks(ctypes.byref(payload), codec.code)


def _parts(codec: Codec, count: int, chunk_bytes: int) -> Iterator[tuple[slice, slice, int]]:
    """Parts of a payload whose chunks are alike: chunks, elements, and elements of a chunk."""
    per_chunk = codec.elements(chunk_bytes)
    whole, step = count // per_chunk, max(1, _BLOCK // per_chunk)
    for first in range(0, whole, step):
        last = min(first + step, whole)
        yield slice(first, last), slice(first * per_chunk, last * per_chunk), per_chunk
    if rest := count - whole * per_chunk:
        yield slice(whole, whole + 1), slice(whole * per_chunk, count), rest


def _write(codec: Codec, values: Vector, rows: Rows, keys: Keys, residual: Vector | None) -> None:
    with np.errstate(all="ignore"):
        for chunks, elements, per_chunk in _parts(codec, len(values), rows.shape[1]):
            part = values[elements].reshape(-1, per_chunk)
            encoded = codec.encode(part, elements.start, keys)
            rows[chunks, : encoded.shape[1]] = encoded
            if residual is not None:
                lost = part - codec.decode(encoded, per_chunk)
                residual[elements] = np.where(np.isfinite(lost), lost, 0).reshape(-1)


def _read(codec: Codec, rows: Rows, values: Vector, chosen: NDArray[np.bool_] | None) -> None:
    for chunks, elements, per_chunk in _parts(codec, len(values), rows.shape[1]):
        part = values[elements].reshape(-1, per_chunk)
        encoded = rows[chunks, : codec.length(per_chunk)]
        taken = slice(None) if chosen is None else chosen[chunks]
        with np.errstate(all="ignore"):
            part[taken] = codec.decode(np.ascontiguousarray(encoded[taken]), per_chunk)
