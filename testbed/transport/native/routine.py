"""The wait during which a connection's routine is done, by the compiled library."""

import ctypes
import math
import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from testbed.transport.core.hot_path import Arrivals
from testbed.transport.core.routine import (
    COALESCED_S,
    DECAY,
    GATHERED,
    LEAST_S,
    PAUSE_S,
    WINDOW_S,
    Departures,
    Expected,
)
from testbed.transport.native.hot_path import (
    LIBRARY,
    CompiledComposer,
    CompiledPlacement,
    address_of,
)

_LOGGED = 64


class Compiled(Protocol):
    """What C has a struct of."""

    address: int


def _structure(*fields: tuple[type, str]) -> list[tuple[str, type]]:
    return [(name, kind) for kind, names in fields for name in names.split()]


class _Departing(ctypes.Structure):
    """struct departing."""

    _fields_ = _structure(
        (ctypes.c_void_p, "composing sealing plain segmented chunks"),
        (ctypes.c_double, "due_s tokens refilled_s bytes_per_s most_tokens wire_bytes"),
        (ctypes.c_int64, "count beyond first quantum most descriptor over sent batches"),
        (ctypes.c_double * _LOGGED, "at_s"),
        (ctypes.c_int64 * _LOGGED, "sizes"),
    )


class _Arriving(ctypes.Structure):
    """struct arriving."""

    _fields_ = _structure(
        (ctypes.c_void_p, "receiving sealing placing"),
        (ctypes.c_double, "due_s most_s rate since_s last_s"),
        (ctypes.c_double, "gathered least_s window_s pause_s decay quiet lost_cost"),
        (ctypes.c_int64, "count missing newest reached descriptor over at_once"),
        (ctypes.c_int64, "valid gained received unplaced drained"),
        (ctypes.c_double, "at_s"),
    )


class Departing:
    """Sends `Departures`, as often as they are begun."""

    def __init__(
        self, descriptor: int, plain: int, segmented: int, *, seal: Compiled | None = None
    ) -> None:
        """`plain` and `segmented` are what `BatchSender.compiled` gives."""
        self._seal = seal  # holds the struct
        sealing = None if seal is None else seal.address
        self._it = _Departing(descriptor=descriptor, plain=plain, sealing=sealing)
        self._segmented = segmented
        self.address = ctypes.addressof(self._it)

    def begin(self, departures: Departures, due_s: float, *, segmented: bool) -> bool:
        """Says what may be sent, from `due_s` on; False where it cannot be."""
        composer, chunks, first, beyond, pacer = departures
        if not isinstance(composer, CompiledComposer) or pacer.refilled_s is None:
            return False
        it = self._it
        self._departures = departures
        self._chunks = np.ascontiguousarray(chunks, dtype=np.int64)
        it.composing, it.chunks = composer.address, address_of(self._chunks)
        it.segmented = self._segmented if segmented else None
        it.due_s, it.tokens, it.refilled_s = due_s, pacer.tokens, pacer.refilled_s
        it.bytes_per_s, it.wire_bytes = pacer.bytes_per_s, pacer.datagram_bytes
        it.most_tokens, it.quantum, it.most = pacer.most_tokens, pacer.quantum, pacer.most
        it.count, it.beyond, it.first = len(chunks), beyond, first
        it.over = it.sent = it.batches = 0
        return True

    @property
    def worked(self) -> bool:
        """Whether any were sent, or it goes on no longer because there is something to decide."""
        return bool(self._it.batches or self._it.over)

    def end(self) -> tuple[Departures, list[tuple[int, float]]]:
        """What was to be sent, and the batches that were: how many datagrams, and when."""
        it, pacer = self._it, self._departures.pacer
        if it.batches:
            pacer.tokens, pacer.refilled_s = it.tokens, it.refilled_s
        return self._departures, list(zip(it.sizes[: it.batches], it.at_s, strict=False))


class Arriving:
    """Takes what is `Expected`."""

    def __init__(self, descriptor: int, *, seal: Compiled | None = None) -> None:
        self._seal = seal  # holds the struct
        self.it = _Arriving(
            descriptor=descriptor,
            sealing=None if seal is None else seal.address,
            gathered=GATHERED,
            least_s=LEAST_S,
            window_s=WINDOW_S,
            pause_s=PAUSE_S,
            decay=DECAY,
        )
        self.address = ctypes.addressof(self.it)

    def begin(self, expected: Expected, due_s: float | None, receiving: int) -> bool:
        """Says what is awaited and when it has gathered; False where it cannot be taken."""
        placement, gathering, missing, most_s, quiet = expected
        if not isinstance(placement, CompiledPlacement):
            return False
        it = self.it
        self._placement, self._gathering = placement, gathering
        placement.reserve()
        it.receiving, it.placing = receiving, placement.address
        it.at_once, it.due_s = due_s is None, math.inf if due_s is None else due_s
        it.most_s, it.missing = most_s, missing
        it.rate, it.count = gathering.rate, gathering.count
        it.since_s, it.last_s = gathering.since_s, gathering.last_s
        it.quiet, it.lost_cost, it.newest = quiet.budget, quiet.lost_cost, quiet.newest
        it.over = it.valid = it.gained = it.reached = it.unplaced = 0
        return True

    @property
    def worked(self) -> bool:
        """Whether any have come, or there is something to decide."""
        return bool(self.it.valid or self.it.over)

    def end(self) -> tuple[Arrivals, float]:
        """What has been taken, and when the latest was."""
        it, gathering = self.it, self._gathering
        gathering.rate, gathering.count = it.rate, it.count
        gathering.since_s, gathering.last_s = it.since_s, it.last_s
        return self._placement.taken(it.valid, it.gained), it.at_s


class _PollFd(ctypes.Structure):
    """struct pollfd."""

    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


class Polled:
    """Descriptors to wait for, each with the events that are wanted, as `select.poll` has them."""

    def __init__(self, wanted: Sequence[tuple[int, int]]) -> None:
        self.count = len(wanted)
        self._each = (_PollFd * self.count)(*(_PollFd(*each) for each in wanted))
        self.address = ctypes.addressof(self._each)

    def found(self) -> list[tuple[int, int]]:
        """The descriptors that something happened to, and what."""
        return [(each.fd, each.revents) for each in self._each if each.revents]


def wait_working(
    going: Sequence[Departing], coming: Sequence[Arriving], polled: Polled, until_s: float
) -> list[tuple[int, int]]:
    """Waits for descriptors and does the routine meanwhile; returns what has happened to which."""
    assert LIBRARY is not None
    goings = (ctypes.c_void_p * len(going))(*(each.address for each in going))
    comings = (ctypes.c_void_p * len(coming))(*(each.address for each in coming))
    ready = LIBRARY.wait_working(
        *(goings, len(going), comings, len(coming)),
        *(polled.address, polled.count, until_s, COALESCED_S),
    )
    if ready < 0:
        raise OSError(-ready, os.strerror(-ready))
    return polled.found() if ready else []
