"""Calls the compiled library of `batches.c`."""

import ctypes
import math
import os
import select
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.compiled import SOURCES, address_of, load, structure
from testbed.transport.fast_path import (
    COALESCED_S,
    FAULTS,
    NUMPY,
    Arrivals,
    Coalescer,
    Composer,
    FastPath,
    Placement,
    ReceivePlan,
    SendPlan,
)

# Each function, what it returns, and what it takes.
_FUNCTIONS = (
    *(("compose", "i", "aassi"), ("place", "s", "aass"), ("transfer_of", "s", "ass")),
    *(("take_key", "-", "acscs"), ("seal_rows", "i", "aass"), ("open_rows", "s", "aass")),
    *(("aes_gcm", "i", "aacasasi"), ("forget_keys", "-", "a")),
    *(("receive", "s", "ai"), ("send_rows", "s", "aias"), ("wait_with_plans", "s", "asasasdd")),
    *(("send_planned", "-", "ad"), ("receive_planned", "-", "ad")),
)


LIBRARY, WHY_NONE = load(SOURCES / "batches.c", _FUNCTIONS)

_RESERVED = 4096
_SELECTABLE = 1024  # FD_SETSIZE
_LOGGED = 64
_TRANSFER = "session transfer chunk_count chunk_bytes last_length"


class _Composing(ctypes.Structure):
    _fields_ = structure(
        (ctypes.c_void_p, "frames rows"),
        (ctypes.c_uint64, "frames_room rows_room"),
        (ctypes.c_uint32, f"{_TRANSFER} stride"),
    )


class _Placing(ctypes.Structure):
    _fields_ = structure(
        (ctypes.c_void_p, "rows received seen stamps chunks"),
        (ctypes.c_uint64, "rows_room"),
        (ctypes.c_uint32, f"{_TRANSFER} window newest farthest room ignored gained"),
        (ctypes.c_uint32 * len(FAULTS), "faults"),
    )


def _describe(it: _Composing | _Placing, of: Composer | Placement) -> None:
    layout = of.layout
    it.session, it.transfer = of.session, of.transfer
    it.chunk_count, it.chunk_bytes = layout.chunk_count, layout.chunk_bytes
    it.last_length = int(layout.chunk_lengths[-1])


class CompiledComposer(Composer):
    def __init__(self, **transfer: Any) -> None:
        super().__init__(**transfer)
        frames, rows = self.frames, self.rows
        assert LIBRARY is not None
        assert frames.strides[1] == 1 and rows.flags.c_contiguous
        self._it = _Composing(
            frames=address_of(frames),
            rows=address_of(rows),
            frames_room=len(frames) * frames.strides[0],
            rows_room=rows.nbytes,
            stride=frames.strides[0],
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
    def __post_init__(self) -> None:
        super().__post_init__()
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
        self._take = LIBRARY.place
        self._make_room(0)
        self.move(self.rows)

    def move(self, rows: NDArray[np.uint8]) -> None:
        assert rows.flags.c_contiguous
        super().move(rows)
        self._it.rows, self._it.rows_room = address_of(rows), rows.nbytes

    def _make_room(self, count: int) -> None:
        self._stamps = np.empty(count, dtype=np.uint32)
        self._chunks = np.empty(count, dtype=np.int64)
        self._it.stamps = address_of(self._stamps)
        self._it.chunks = address_of(self._chunks)
        self._it.room = count

    def take(self, frames: NDArray[np.uint8]) -> Arrivals:
        count, it = len(frames), self._it
        if count > len(self._stamps):
            self._make_room(count)
        stride = frames.strides[0] if count > 1 else frames.shape[1]  # of one it means nothing
        valid = self._take(self.address, address_of(frames), count, stride)
        assert valid >= 0
        return self.taken(valid, it.gained)

    def reserve(self) -> None:
        """Makes room for the results of several batches that C takes itself."""
        self._it.ignored = 0
        if len(self._stamps) < _RESERVED:
            self._make_room(_RESERVED)

    def taken(self, valid: int, gained: int) -> Arrivals:
        """Returns what C has taken: so many valid datagrams, with so many new chunks."""
        if self._it.ignored:
            ignored = Counter(dict(zip(FAULTS, self._it.faults, strict=True)))
            ignored["duplicate"] = self._it.ignored - ignored.total()
            self.ignored += ignored
        self.received_count += gained
        return Arrivals(self._stamps[:valid].copy(), self._chunks[:gained].copy())


def _transfer_of(frames: NDArray[np.uint8]) -> int | None:
    assert LIBRARY is not None
    transfer = LIBRARY.transfer_of(address_of(frames), len(frames), frames.strides[0])
    return None if transfer < 0 else int(transfer)


_COMPILED = FastPath(CompiledComposer, CompiledPlacement, _transfer_of, compiled=True)
FAST_PATH = NUMPY if LIBRARY is None else _COMPILED


class PlannedSend(ctypes.Structure):
    """Carries out one `SendPlan` after another."""

    _fields_ = structure(
        (ctypes.c_void_p, "composing sealing plain segmented chunks"),
        (ctypes.c_double, "due_s tokens refilled_s bytes_per_s most_tokens wire_bytes"),
        (ctypes.c_double, "steady_until_s"),
        (ctypes.c_int64, "count beyond first window question ask_at ask_gap"),
        (ctypes.c_int64, "quantum most rests descriptor over sent batches"),
        (ctypes.c_double * _LOGGED, "at_s"),
        (ctypes.c_int64 * _LOGGED, "sizes"),
    )

    def __init__(self, descriptor: int, plain: int, segmented: int, *, seal: Any) -> None:
        """`plain` and `segmented` are a `BatchSender`'s `addresses`; `seal` a compiled one's."""
        sealing = getattr(seal, "address", None)
        super().__init__(descriptor=descriptor, plain=plain, sealing=sealing)
        self._seal = seal  # holds the struct
        self._segmented = segmented
        self.address = ctypes.addressof(self)

    def begin(self, plan: SendPlan, due_s: float, *, segmented: bool) -> bool:
        """Sets the plan, which begins at `due_s`; False where C cannot."""
        composer, chunks, pacer = plan.composer, plan.chunks, plan.pacer
        if not isinstance(composer, CompiledComposer) or pacer.refilled_s is None:
            return False
        self._plan = plan
        self._chunks = np.ascontiguousarray(chunks, dtype=np.int64)
        self.composing, self.chunks = composer.address, address_of(self._chunks)
        self.segmented = self._segmented if segmented else None
        self.due_s, self.tokens, self.refilled_s = due_s, pacer.tokens, pacer.refilled_s
        self.bytes_per_s, self.wire_bytes = pacer.bytes_per_s, pacer.datagram_bytes
        self.most_tokens, self.quantum, self.most = pacer.most_tokens, pacer.quantum, pacer.most
        self.count, self.beyond, self.first = len(chunks), plan.beyond, plan.first
        self.window, self.question = plan.window, plan.question
        self.ask_at, self.ask_gap = plan.ask_at, plan.ask_gap
        self.steady_until_s, self.rests = plan.steady_until_s, plan.rests
        self.over = self.sent = self.batches = 0
        return True

    @property
    def worked(self) -> bool:
        return bool(self.batches or self.over)

    def end(self) -> tuple[SendPlan, list[tuple[int, float]]]:
        """Returns the plan, and the batches that were sent: how many datagrams, and when."""
        pacer = self._plan.pacer
        if self.batches:
            pacer.tokens, pacer.refilled_s = self.tokens, self.refilled_s
        return self._plan, list(zip(self.sizes[: self.batches], self.at_s, strict=False))


class PlannedReceive(ctypes.Structure):
    """Carries out one `ReceivePlan` after another."""

    _fields_ = structure(
        (ctypes.c_void_p, "receiving placing"),
        (ctypes.c_double, "due_s most_s rate since_s last_s"),
        (ctypes.c_double, "most_datagrams least_s window_s pause_s decay silence lost_cost"),
        (ctypes.c_int64, "count missing newest reached descriptor over at_once"),
        (ctypes.c_int64, "valid gained received unplaced drained"),
        (ctypes.c_double, "at_s"),
    )

    def __init__(self, descriptor: int, receiving: int) -> None:
        """`receiving` is the address of struct receiving."""
        super().__init__(
            descriptor=descriptor,
            receiving=receiving,
            most_datagrams=Coalescer.most_datagrams,
            least_s=Coalescer.least_s,
            window_s=Coalescer.window_s,
            pause_s=Coalescer.pause_s,
            decay=Coalescer.decay,
        )
        self.address = ctypes.addressof(self)

    def begin(self, plan: ReceivePlan, due_s: float | None) -> bool:
        """Sets the plan; datagrams coalesce until `due_s`, None: not. False where C cannot."""
        placement, coalescer, missing, most_s, silence = plan
        if not isinstance(placement, CompiledPlacement):
            return False
        self._placement, self._coalescer = placement, coalescer
        placement.reserve()
        self.placing = placement.address
        self.at_once, self.due_s = due_s is None, math.inf if due_s is None else due_s
        self.most_s, self.missing = most_s, missing
        self.rate, self.count = coalescer.rate, coalescer.count
        self.since_s, self.last_s = coalescer.since_s, coalescer.last_s
        self.silence, self.lost_cost = silence.budget, silence.lost_cost
        self.newest = silence.newest
        self.over = self.valid = self.gained = self.reached = self.unplaced = 0
        return True

    @property
    def worked(self) -> bool:
        return bool(self.valid or self.over)

    def end(self) -> tuple[Arrivals, float]:
        """Returns what was received, and when the latest was."""
        coalescer = self._coalescer
        coalescer.rate, coalescer.count = self.rate, self.count
        coalescer.since_s, coalescer.last_s = self.since_s, self.last_s
        return self._placement.taken(self.valid, self.gained), self.at_s


_POLLFD = np.dtype([("fd", "i4"), ("events", "i2"), ("revents", "i2")])  # struct pollfd


class Polled:
    """Descriptors to wait for, each with its events of `poll`."""

    def __init__(self, events: Sequence[tuple[int, int]]) -> None:
        self.events = events
        self.entries = np.array([(*entry, 0) for entry in events], _POLLFD)
        self.address = address_of(self.entries)  # numpy takes 20 us to describe it


def wait_with_plans(
    sends: Sequence[PlannedSend],
    receives: Sequence[PlannedReceive],
    polled: Polled,
    until_s: float,
) -> list[tuple[int, int]]:
    """Waits for descriptors and carries out plans meanwhile.

    Returns the descriptors that are ready, each with its events.
    """
    if LIBRARY is None:
        return _wait(polled.events, max(0.0, until_s - time.monotonic()))
    sending = (ctypes.c_void_p * len(sends))(*(plan.address for plan in sends))
    receiving = (ctypes.c_void_p * len(receives))(*(plan.address for plan in receives))
    ready = LIBRARY.wait_with_plans(
        *(sending, len(sends), receiving, len(receives)),
        *(polled.address, len(polled.entries), until_s, COALESCED_S),
    )
    if ready < 0:
        raise OSError(-ready, os.strerror(-ready))
    return [(fd, revents) for fd, _, revents in polled.entries.tolist() if revents] if ready else []


def _wait(events: Sequence[tuple[int, int]], timeout_s: float) -> list[tuple[int, int]]:
    """Waits for descriptors without the library."""
    if any(descriptor >= _SELECTABLE for descriptor, _ in events):
        waiting = select.poll()
        for entry in events:
            waiting.register(*entry)
        return waiting.poll(math.ceil(timeout_s * 1000))
    # poll rounds up to whole milliseconds, which is as long as a whole batch of the pacer.
    readers, writers = (
        [descriptor for descriptor, kinds in events if kinds & kind]
        for kind in (select.POLLIN, select.POLLOUT)
    )
    readable, writable, _ = select.select(readers, writers, (), timeout_s)
    return [(descriptor, select.POLLIN) for descriptor in readable] + [
        (descriptor, select.POLLOUT) for descriptor in writable
    ]
