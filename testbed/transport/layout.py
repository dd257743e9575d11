"""The payload layout: where each tensor's elements lie, and how the payload is cut into chunks."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.transport.errors import ProtocolError
from testbed.transport.messages import MAX_STOP_BYTES
from testbed.transport.wire import CHUNK_BITS, DEFAULT_CHUNK_BYTES, check_chunk_bytes

ELEMENT_BYTES = 4
MAX_CHUNKS = 8 * MAX_STOP_BYTES
assert MAX_CHUNKS <= 1 << CHUNK_BITS
_HEAD = struct.Struct("!II")  # chunk_bytes, number of tensors
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

    A *buffer* is a contiguous uint8 array of chunk_count * chunk_bytes bytes: the elements in
    little-endian order, then zeros up to the end of the last chunk. Reuse buffers: touching fresh
    memory costs as much as all the other work of a transfer.

    `tensors` are (name, number of elements) in the order of the payload, with unique names;
    `chunk_bytes` is a multiple of 4. ValueError where they cannot be.
    """

    tensors: Sequence[tuple[str, int]]
    chunk_bytes: int = DEFAULT_CHUNK_BYTES

    def __post_init__(self) -> None:
        check_chunk_bytes(self.chunk_bytes)
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

    @cached_property
    def element_count(self) -> int:
        """Elements of all tensors together."""
        return sum(count for _, count in self.tensors)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the elements, without the padding of the last chunk."""
        return self.element_count * ELEMENT_BYTES

    @cached_property
    def chunk_count(self) -> int:
        """Chunks of one transfer."""
        return -(-self.payload_bytes // self.chunk_bytes)

    @property
    def elements_per_chunk(self) -> int:
        """Elements of every chunk, except that the last may have fewer."""
        return self.chunk_bytes // ELEMENT_BYTES

    @cached_property
    def chunk_lengths(self) -> NDArray[np.uint16]:
        """Valid payload bytes of each chunk, shape (chunk_count,)."""
        lengths = np.full(self.chunk_count, self.chunk_bytes, dtype=np.uint16)
        lengths[-1] = self.payload_bytes - (self.chunk_count - 1) * self.chunk_bytes
        return lengths

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
        return tuple(PayloadLayout([tensor], self.chunk_bytes) for tensor in self.tensors)

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
        """The buffer's elements, shape (element_count,); shares its memory."""
        return self.rows(buffer).reshape(-1).view("<f4")[: self.element_count]

    def element_mask(self, chunk_mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Turns a mask of chunks, shape (chunk_count,), into one of elements, (element_count,)."""
        return np.repeat(chunk_mask, self.elements_per_chunk)[: self.element_count]

    def encode(self) -> bytes:
        """The layout in binary form, for `decode` on the other side."""
        parts = [_HEAD.pack(self.chunk_bytes, len(self.tensors))]
        for name, count in self.tensors:
            encoded = name.encode()
            parts += [_NAME.pack(len(encoded)), encoded, _COUNT.pack(count)]
        return b"".join(parts)

    @classmethod
    def decode(cls, body: bytes) -> "PayloadLayout":
        """Reads the result of `encode`; ProtocolError for anything else."""
        try:
            chunk_bytes, tensor_count = _HEAD.unpack_from(body)
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
            return cls(tensors, chunk_bytes)
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise ProtocolError(f"malformed layout: {error}") from error

    def difference(self, other: "PayloadLayout", owners: tuple[str, str]) -> str | None:
        """The first difference between two layouts, in one line; None when they are equal."""
        one, two = owners
        if self.chunk_bytes != other.chunk_bytes:
            return f"chunk_bytes is {self.chunk_bytes} at {one} and {other.chunk_bytes} at {two}"
        if len(self.tensors) != len(other.tensors):
            return f"{len(self.tensors)} tensors at {one} and {len(other.tensors)} at {two}"
        for index, (ours, theirs) in enumerate(zip(self.tensors, other.tensors, strict=True)):
            if ours != theirs:
                return (
                    f"tensor {index} is {ours[0]!r} with {ours[1]} elements at {one} "
                    f"and {theirs[0]!r} with {theirs[1]} at {two}"
                )
        return None


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
