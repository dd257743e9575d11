"""Loads the compiled library, which lies beside this file once it is built; composes and places."""

import ctypes
import hashlib
import struct
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.hot_path import NUMPY, Arrivals, Composer, HotPath, Placement

_ELF_HEADER_BYTES = 64
_SOURCE = Path(__file__).with_name("batches.c")
_OTHER_SOURCES = ("batches.h", "routine.c", "sealing.c")  # setup.py has the same order
_KINDS: dict[str, Any] = {
    "-": None,
    "a": ctypes.c_void_p,
    "c": ctypes.c_char_p,
    "d": ctypes.c_double,
    "i": ctypes.c_int,
    "s": ctypes.c_int64,
}
# Each function, what it returns, and what it takes.
_FUNCTIONS = (
    *(("compose", "i", "aassi"), ("place", "s", "aassi"), ("transfer_of", "s", "ass")),
    *(("take_key", "-", "acsc"), ("seal_rows", "i", "aas"), ("open_rows", "s", "aasa")),
    *(("receive", "s", "ai"), ("send_rows", "s", "aias"), ("wait_working", "s", "asasasdd")),
    *(("depart", "-", "ad"), ("arrive", "-", "ad")),
)


def _is_whole(elf: bytes) -> bool:
    """Whether a 64-bit ELF file has its end, the table of sections; to load half of it is fatal."""
    if len(elf) < _ELF_HEADER_BYTES:
        return False
    (table,) = struct.unpack_from("<Q", elf, 40)
    entry_bytes, entries = struct.unpack_from("<HH", elf, 58)
    return bool(table + entry_bytes * entries <= len(elf))


def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and why."""
    built = (_SOURCE.with_suffix(suffix) for suffix in EXTENSION_SUFFIXES)
    path = next((each for each in built if each.exists()), None)
    if path is None:
        return None, "it was not compiled"
    try:
        if not _is_whole(path.read_bytes()):
            return None, f"{path.name} is cut short"
        library = ctypes.CDLL(str(path))
        library.source.restype = ctypes.c_char_p
        paths = (_SOURCE, *(_SOURCE.with_name(name) for name in _OTHER_SOURCES))
        source = b"".join(path.read_bytes() for path in paths)
        if library.source() != hashlib.sha256(source).hexdigest().encode():
            return None, f"{path.name} was compiled from another source"
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be loaded: {error}"
    for name, result, arguments in _FUNCTIONS:
        if (function := getattr(library, name, None)) is not None:  # some are of Linux alone
            function.restype = _KINDS[result]
            function.argtypes = [_KINDS[each] for each in arguments]
    return library, ""


LIBRARY, WHY_NONE = _load()
"""The library, or None; and why there is none."""


_FAULTS = (
    *("wrong-session", "stale-transfer", "early-transfer", "out-of-range", "wrong-length"),
    *("replayed", "too-old", "far-ahead"),
)
_RESERVED = 4096
_TRANSFER = [
    (name, ctypes.c_uint32)
    for name in ("session", "transfer", "chunk_count", "chunk_bytes", "last_length")
]


class _Composing(ctypes.Structure):
    """struct composing."""

    _fields_ = [
        ("frames", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("frames_room", ctypes.c_uint64),
        ("rows_room", ctypes.c_uint64),
        *_TRANSFER,
    ]


class _Placing(ctypes.Structure):
    """struct placing."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("rows", "received", "seen", "stamps", "chunks")),
        ("rows_room", ctypes.c_uint64),
        *_TRANSFER,
        *((name, ctypes.c_uint32) for name in ("window", "newest", "farthest")),
        ("room", ctypes.c_uint32),
        ("ignored", ctypes.c_uint32),
        ("gained", ctypes.c_uint32),
        ("faults", ctypes.c_uint32 * len(_FAULTS)),
    ]


def address_of(array: NDArray[np.generic]) -> int:
    """Where an array's memory begins."""
    return int(array.__array_interface__["data"][0])


def _describe(it: _Composing | _Placing, of: Composer | Placement) -> None:
    layout = of.layout
    it.session, it.transfer = of.session, of.transfer
    it.chunk_count, it.chunk_bytes = layout.chunk_count, layout.chunk_bytes
    it.last_length = int(layout.chunk_lengths[-1])


class CompiledComposer(Composer):
    """One call per batch."""

    def _prepare(self) -> None:
        frames, rows = self.frames, self.rows
        assert LIBRARY is not None
        assert frames.flags.c_contiguous and rows.flags.c_contiguous
        self._it = _Composing(
            frames=address_of(frames),
            rows=address_of(rows),
            frames_room=frames.nbytes,
            rows_room=rows.nbytes,
        )
        _describe(self._it, self)
        self.address = ctypes.addressof(self._it)  # of its struct composing
        self._compose = LIBRARY.compose

    def compose(self, chunks: NDArray[np.int64], first: int, *, ask: int) -> bool:
        count = len(chunks)
        # A repair may give numbers of another size.
        chunks = np.ascontiguousarray(chunks, dtype=np.int64)
        return not self._compose(self.address, address_of(chunks), count, first, ask)


class CompiledPlacement(Placement):
    """One call per batch."""

    def _prepare(self) -> None:
        assert LIBRARY is not None
        self._it = _Placing(
            received=address_of(self.received),
            seen=address_of(self._seen),
            window=len(self._seen),
            newest=self._newest,
            farthest=self._newest,
        )
        _describe(self._it, self)
        self.address = ctypes.addressof(self._it)  # of its struct placing
        self._place = LIBRARY.place
        self._stamps = np.empty(0, dtype=np.uint32)
        self._chunks = np.empty(0, dtype=np.int64)
        self._set_rows(self.rows)

    def _set_rows(self, rows: NDArray[np.uint8]) -> None:
        assert rows.flags.c_contiguous
        self._it.rows, self._it.rows_room = address_of(rows), rows.nbytes

    def move(self, rows: NDArray[np.uint8]) -> None:
        super().move(rows)
        self._set_rows(rows)

    def _make_room(self, count: int) -> None:
        self._stamps = np.empty(count, dtype=np.uint32)
        self._chunks = np.empty(count, dtype=np.int64)
        self._it.stamps = address_of(self._stamps)
        self._it.chunks = address_of(self._chunks)
        self._it.room = count

    def take(self, frames: NDArray[np.uint8], *, place: bool) -> Arrivals:
        count, it = len(frames), self._it
        if count > len(self._stamps):
            self._make_room(count)
        stride = frames.strides[0] if count > 1 else frames.shape[1]  # of one it means nothing
        valid = self._place(self.address, address_of(frames), count, stride, place)
        assert valid >= 0
        return self.taken(valid, it.gained)

    def reserve(self) -> None:
        """Makes room for the results of several batches that C takes itself."""
        self._it.ignored = 0
        if len(self._stamps) < _RESERVED:
            self._make_room(_RESERVED)

    def taken(self, valid: int, gained: int) -> Arrivals:
        """What C has taken: so many valid datagrams, with so many new chunks."""
        new = self._chunks[:gained].copy()
        if self._it.ignored:
            self._count()
        self.received_count += gained
        return Arrivals(self._stamps[:valid].copy(), new)

    def _count(self) -> None:
        faults = list(self._it.faults)
        for reason, number in zip(_FAULTS, faults, strict=True):
            if number:
                self.ignored[reason] += number
        if duplicates := self._it.ignored - sum(faults):
            self.ignored["duplicate"] += duplicates


def _transfer_of(frames: NDArray[np.uint8]) -> int | None:
    assert LIBRARY is not None
    transfer = LIBRARY.transfer_of(address_of(frames), len(frames), frames.strides[0])
    return None if transfer < 0 else int(transfer)


_COMPILED = HotPath(CompiledComposer, CompiledPlacement, _transfer_of, compiled=True)
HOT_PATH = NUMPY if LIBRARY is None else _COMPILED
"""The fastest that this installation has."""
