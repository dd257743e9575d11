"""The routine of a sender in virtual time: what its pacer lets go, sent ahead as one train.

`testbed.transport.core.routine` says what that may be. When each datagram departs is known
beforehand, and so is what has departed when something happens.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.simulate import headers
from testbed.simulate.train import Batch
from testbed.transport.core.connection import Connection
from testbed.transport.core.pacing import Pacer
from testbed.transport.core.routine import Departures

# So many datagrams are sent ahead at most.
_MOST = 1 << 13


class Schedule(NamedTuple):
    """When batches go.

    Attributes:
        times_s, sizes: of each, shape (batches,).
        tokens: what the first one leaves of the pacer's; the others leave none.
    """

    times_s: NDArray[np.float64]
    sizes: NDArray[np.int64]
    tokens: float


def schedule(pacer: Pacer, now_s: float, count: int, beyond: int) -> Schedule:
    """The pacer's, for so many datagrams and what waits behind them, if nothing happens."""
    size_bytes, quantum = pacer.datagram_bytes, pacer.quantum
    due_s = pacer.next_s(now_s, count + beyond)
    assert pacer.refilled_s is not None  # it has just looked
    tokens = pacer.tokens + pacer.bytes_per_s * (due_s - pacer.refilled_s)
    tokens = min(tokens, pacer.most_tokens)
    first = min(int((tokens + 1) // size_bytes), pacer.most, count)
    tokens -= first * size_bytes
    left = count - first
    full, rest = divmod(left, quantum)
    sizes = np.full(1 + full + bool(rest), quantum, np.int64)
    sizes[0] = first
    # A whole quantum's tokens are awaited, unless less than that is left of all.
    awaited = sizes[1:].copy()
    if rest:
        sizes[-1] = rest
        awaited[-1] = min(quantum, rest + beyond)
    waits_s = awaited * size_bytes / pacer.bytes_per_s
    if len(waits_s):
        waits_s[0] -= tokens / pacer.bytes_per_s
    return Schedule(due_s + np.concatenate([[0.0], np.cumsum(waits_s)]), sizes, tokens)


class Ahead:
    """Datagrams that were sent ahead.

    Attributes:
        batch: on the links; whoever made it sets it.
        frames: the datagrams, as `headers.kept`.
        size_bytes: of each.
        times_s: when each departs, shape (count,).
    """

    batch: Batch

    def __init__(self, departures: Departures, now_s: float) -> None:
        self._departures = departures
        composer = departures.composer
        count = min(len(departures.chunks), _MOST)
        beyond = departures.beyond + len(departures.chunks) - count
        self._schedule = schedule(departures.pacer, now_s, count, beyond)
        self.times_s = np.repeat(self._schedule.times_s, self._schedule.sizes)
        room, parts = len(composer.frames), []
        for begin in range(0, count, room):
            chunks = departures.chunks[begin : min(count, begin + room)]
            composer.compose(chunks, departures.first + begin, ask=0)
            parts.append(headers.kept(composer.frames[: len(chunks)]))
        self.frames = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.size_bytes = composer.frames.shape[1]

    @property
    def over_s(self) -> float:
        """When the last one departs."""
        return float(self._schedule.times_s[-1])

    def settle(self, connection: Connection, now_s: float) -> None:
        """Reports what has departed by now; nothing else does."""
        times_s, sizes, tokens = self._schedule
        count = int(np.searchsorted(times_s, now_s, side="right"))
        self.batch.recall(now_s)
        if not count:
            return
        pacer = self._departures.pacer
        pacer.tokens = tokens if count == 1 else 0.0
        pacer.refilled_s = float(times_s[count - 1])
        sent = list(zip(sizes[:count].tolist(), times_s[:count].tolist(), strict=True))
        connection.departed(self._departures, sent)
