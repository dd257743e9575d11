"""The payload layout: where each tensor's elements lie, and how the payload is cut into chunks."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.transport import codec as codecs
from testbed.transport.codec import CODECS, Codec
from testbed.transport.errors import ProtocolError
from testbed.transport.messages import MAX_STOP_BYTES
from testbed.transport.wire import (
    CHUNK_BITS,
    DEFAULT_CHUNK_BYTES,
    HEADER_BYTES,
    MAX_DATAGRAM_BYTES,
)

ELEMENT_BYTES = 4
MAX_CHUNKS = 8 * MAX_STOP_BYTES
assert MAX_CHUNKS <= 1 << CHUNK_BITS
_HEAD = struct.Struct("!IBI")  # chunk_bytes, the codec's code, number of tensors
_NAME = struct.Struct("!H")  # length of the name that follows
_COUNT = struct.Struct("!Q")  # elements of the tensor


class Pieces(NamedTuple):
    """The parts of a payload that lie in one chunk and in one tensor, in payload order."""

    chunk: NDArray[np.int64]  # their numbers, shape (piece_count,)
    tensor: NDArray[np.int64]
    elements: NDArray[np.int64]  # how many elements each part has, at least 1, shape (piece_count,)


@dataclass(frozen=True)
class PayloadLayout:
    """Float32 tensors, one after the other, cut into at most MAX_CHUNKS chunks; else ValueError.

    A *buffer* is a contiguous uint8 array of chunk_count * chunk_bytes bytes: the chunks as they
    travel, which `codec` makes of the elements, then zeros up to the end of the last one. `write`
    fills it and `read` reads it; with the codec `float32`, `floats` is its memory. Reuse buffers:
    touching fresh memory costs as much as all the other work of a transfer.

    `tensors` are (name, number of elements) in the order of the payload, with unique names;
    `chunk_bytes` is a multiple of 4; `codec` is an entry of CODECS. ValueError where they cannot
    be.
    """

    tensors: Sequence[tuple[str, int]]
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    codec: str = "float32"

    def __post_init__(self) -> None:
        self._check_chunk_bytes()
        entries = tuple((str(name), int(count)) for name, count in self.tensors)
        for name, count in entries:
            if count < 0:
                raise ValueError(f"tensor {name!r} has {count} elements; valid: 0 or more")
            if len(name.encode()) > 0xFFFF:
                raise ValueError("a tensor's name is longer than 65535 bytes")
        if len({name for name, _ in entries}) != len(entries):
            raise ValueError("two tensors have the same name")
        if not sum(count for _, count in entries):
            raise ValueError("the payload is empty; it needs at least one element")
        object.__setattr__(self, "tensors", entries)
        if self.chunk_count > MAX_CHUNKS:
            raise ValueError(
                f"chunk_bytes is {self.chunk_bytes}, which makes {self.chunk_count} chunks; "
                f"valid: at most {MAX_CHUNKS}, since STOP has a bit for each, so larger chunks"
            )

    def _check_chunk_bytes(self) -> None:
        limit = MAX_DATAGRAM_BYTES - HEADER_BYTES
        if not 4 <= self.chunk_bytes <= limit or self.chunk_bytes % 4:
            raise ValueError(
                f"chunk_bytes is {self.chunk_bytes}; "
                f"valid: a multiple of 4 from 4 to {limit // 4 * 4}"
            )
        if self.elements_per_chunk < 1:
            raise ValueError(
                f"chunk_bytes is {self.chunk_bytes}, in which {self.codec} puts no element"
            )

    @cached_property
    def _codec(self) -> Codec:
        return CODECS.create(self.codec)

    @cached_property
    def plain(self) -> "PayloadLayout":
        """The same chunks and tensors with the codec float32: of values before and after."""
        if self.codec == "float32":
            return self
        return _Plain(self.tensors, self.elements_per_chunk * ELEMENT_BYTES)

    @cached_property
    def element_count(self) -> int:
        """Elements of all tensors together."""
        return sum(count for _, count in self.tensors)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the elements as they travel, without the padding of the last chunk."""
        return (self.chunk_count - 1) * self.chunk_bytes + self._last_bytes

    @property
    def _last_bytes(self) -> int:
        before = (self.chunk_count - 1) * self.elements_per_chunk
        return self._codec.length(self.element_count - before)

    @cached_property
    def chunk_count(self) -> int:
        """Chunks of one transfer."""
        return -(-self.element_count // self.elements_per_chunk)

    @cached_property
    def elements_per_chunk(self) -> int:
        """Elements of every chunk, except that the last may have fewer."""
        return self._codec.elements(self.chunk_bytes)

    @cached_property
    def chunk_lengths(self) -> NDArray[np.uint32]:
        """Valid payload bytes of each chunk, shape (chunk_count,)."""
        lengths = np.full(self.chunk_count, self.chunk_bytes, dtype=np.uint32)
        lengths[-1] = self._last_bytes
        return lengths

    @cached_property
    def chunk_elements(self) -> NDArray[np.int64]:
        """Elements of each chunk, shape (chunk_count,)."""
        counts = np.full(self.chunk_count, self.elements_per_chunk, dtype=np.int64)
        counts[-1] = self.element_count - (self.chunk_count - 1) * self.elements_per_chunk
        return counts

    @cached_property
    def pieces(self) -> Pieces:
        """The overlaps of chunks and tensors. A tensor without elements has no piece."""
        counts = np.array([count for _, count in self.tensors], dtype=np.int64)
        ends = np.cumsum(counts)
        chunk_starts = np.arange(self.chunk_count, dtype=np.int64) * self.elements_per_chunk
        starts = np.unique(np.concatenate([chunk_starts, (ends - counts)[counts > 0]]))
        return Pieces(
            chunk=starts // self.elements_per_chunk,
            tensor=np.searchsorted(ends, starts, side="right"),
            elements=np.diff(starts, append=self.element_count),
        )

    @cached_property
    def of_tensors(self) -> tuple["PayloadLayout", ...]:
        """A layout for each tensor alone; ValueError where one has no elements."""
        return tuple(replace(self, tensors=[tensor]) for tensor in self.tensors)

    def new_buffer(self) -> NDArray[np.uint8]:
        """A zeroed buffer for one payload."""
        return np.zeros(self.chunk_count * self.chunk_bytes, dtype=np.uint8)

    def rows(self, buffer: NDArray[np.uint8], *, written: bool = False) -> NDArray[np.uint8]:
        """The buffer as chunks, shape (chunk_count, chunk_bytes), in the same memory.

        ValueError for no buffer of this layout, and with `written` for a read-only one.
        """
        expected = self.chunk_count * self.chunk_bytes
        if buffer.dtype != np.uint8 or buffer.size != expected or not buffer.flags.c_contiguous:
            raise ValueError(
                f"not a buffer of this layout: {buffer.size} elements of {buffer.dtype}; "
                f"valid: {expected} contiguous uint8, as new_buffer() gives"
            )
        if written and not buffer.flags.writeable:
            raise ValueError(
                "a read-only buffer; valid: one to be written into, as new_buffer() gives"
            )
        return buffer.reshape(self.chunk_count, self.chunk_bytes)

    def floats(self, buffer: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The buffer's elements, shape (element_count,); shares its memory.

        ValueError with a codec other than `float32`.
        """
        if self.codec != "float32":
            raise ValueError(f"a buffer of {self.codec}; valid: float32, or write and read")
        return self.rows(buffer).reshape(-1).view("<f4")[: self.element_count]

    def write(
        self,
        values: NDArray[np.float32],
        buffer: NDArray[np.uint8],
        *,
        seed: int = 0,
        transfer: int = 0,
        residual: NDArray[np.float32] | None = None,
    ) -> None:
        """Writes values into a buffer, as its codec has them.

        Args:
            values: float32, shape (element_count,); `floats(buffer)` costs no copy.
            buffer: written whole.
            seed: what the draws of `int8` and `int4` follow from: a sender's own, so that the
                errors of several have nothing in common.
            transfer: the number of the transfer, for draws of its own.
            residual: takes what the codec loses: each value less what `read` gives; 0 where that
                is no finite number. Contiguous float32, other memory than `values`.
        """
        values = np.ascontiguousarray(values)
        for vector in (values, *([] if residual is None else [residual])):
            self._check_vector(vector)
        rows = self.rows(buffer, written=True)
        if self.codec != "float32":
            keys = codecs.keys_of(seed, transfer)
            codecs.write(self._codec, values, rows, keys, residual)
            return
        if residual is not None:
            residual[:] = 0
        into = self.floats(buffer)
        if values.ctypes.data != into.ctypes.data:
            into[:] = values
            rows.reshape(-1)[self.payload_bytes :] = 0

    def read(
        self,
        buffer: NDArray[np.uint8],
        out: NDArray[np.float32] | None = None,
        *,
        received: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float32]:
        """Reads a buffer's values, shape (element_count,), into `out`, and returns it.

        Args:
            buffer: of this layout.
            out: contiguous float32. None: new memory of zeros, or the buffer's with `float32`.
            received: the chunks to read, shape (chunk_count,); what `out` has of the others stays.
                None: all.
        """
        rows = self.rows(buffer)
        if self.codec == "float32":
            floats = self.floats(buffer)
            if out is None or out.ctypes.data == floats.ctypes.data:
                return floats
        out = np.zeros(self.element_count, dtype=np.float32) if out is None else out
        self._check_vector(out)
        codecs.read(self._codec, rows, out, received)
        return out

    def _check_vector(self, vector: NDArray[np.float32]) -> None:
        right = vector.dtype == np.float32 and vector.shape == (self.element_count,)
        if not (right and vector.flags.c_contiguous):
            raise ValueError(
                f"values of shape {vector.shape} and type {vector.dtype}; "
                f"valid: {self.element_count} contiguous float32"
            )

    def chunk_values(
        self, rows: NDArray[np.uint8], chunks: NDArray[np.int64] | slice
    ) -> NDArray[np.float32]:
        """The values of some chunks of `rows`, shape (k, elements_per_chunk), with zeros behind.

        `chunks` ascend. With the codec `float32` a slice of them shares memory.
        """
        taken = rows[chunks]
        if self.codec == "float32":
            return taken.view("<f4")
        counts = self.chunk_elements[chunks]
        values = np.zeros((len(taken), self.elements_per_chunk), dtype=np.float32)
        if len(taken):
            codecs.read(self._codec, taken, values.reshape(-1)[: int(counts.sum())])
        return values

    def element_mask(self, chunk_mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Turns a mask of chunks, shape (chunk_count,), into one of elements, (element_count,)."""
        return np.repeat(chunk_mask, self.elements_per_chunk)[: self.element_count]

    def encode(self) -> bytes:
        """The layout in binary form, for `decode` on the other side."""
        parts = [_HEAD.pack(self.chunk_bytes, self._codec.code, len(self.tensors))]
        for name, count in self.tensors:
            encoded = name.encode()
            parts += [_NAME.pack(len(encoded)), encoded, _COUNT.pack(count)]
        return b"".join(parts)

    @classmethod
    def decode(cls, body: bytes) -> "PayloadLayout":
        """Reads the result of `encode`; ProtocolError for anything else."""
        try:
            chunk_bytes, code, tensor_count = _HEAD.unpack_from(body)
            at = _HEAD.size
            tensors = []
            for _ in range(tensor_count):
                (name_bytes,) = _NAME.unpack_from(body, at)
                at += _NAME.size
                name = body[at : at + name_bytes].decode()
                at += name_bytes
                (count,) = _COUNT.unpack_from(body, at)
                at += _COUNT.size
                tensors.append((name, count))
            if at != len(body):
                raise ProtocolError(f"the layout has {len(body) - at} bytes too many")
            return cls(tensors, chunk_bytes, _codec_of(code))
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise ProtocolError(f"malformed layout: {error}") from error

    def difference(self, other: "PayloadLayout", owners: tuple[str, str]) -> str | None:
        """The first difference between two layouts, in one line; None when they are equal."""
        one, two = owners
        if self.chunk_bytes != other.chunk_bytes:
            return f"chunk_bytes is {self.chunk_bytes} at {one} and {other.chunk_bytes} at {two}"
        if self.codec != other.codec:
            return f"codec is {self.codec} at {one} and {other.codec} at {two}"
        if len(self.tensors) != len(other.tensors):
            return f"{len(self.tensors)} tensors at {one} and {len(other.tensors)} at {two}"
        for index, (ours, theirs) in enumerate(zip(self.tensors, other.tensors, strict=True)):
            if ours != theirs:
                return (
                    f"tensor {index} is {ours[0]!r} with {ours[1]} elements at {one} "
                    f"and {theirs[0]!r} with {theirs[1]} at {two}"
                )
        return None


def _codec_of(code: int) -> str:
    """The codec of a layout's binary form; ValueError for an unknown one."""
    names = [name for name in CODECS if CODECS.create(name).code == code]
    if not names:
        raise ValueError(f"codec {code} is unknown")
    return names[0]


class _Plain(PayloadLayout):
    """A layout of values, which never travel: chunks may be larger than a datagram."""

    def _check_chunk_bytes(self) -> None:
        pass


class Leg(IntEnum):
    """The two directions of a round; a transfer's number is 2 * round + leg."""

    GATHER = 0  # worker to server
    BROADCAST = 1  # server to worker

    def transfer(self, round_index: int) -> int:
        """The number of this leg's transfer in round `round_index` (from 0)."""
        return 2 * round_index + self

    @staticmethod
    def round_of(transfer: int) -> int:
        """The round to which a transfer's number belongs."""
        return transfer // 2


def layout_of(transfer: int, layout: PayloadLayout, *, tensor_by_tensor: bool) -> PayloadLayout:
    """Returns the layout of a transfer: the whole, or one tensor, another one each round."""
    if not tensor_by_tensor:
        return layout
    return layout.of_tensors[Leg.round_of(transfer) % len(layout.of_tensors)]
