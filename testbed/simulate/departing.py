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
_NOTHING = np.empty((0, 0), np.uint8)


class Schedule(NamedTuple):
    """When batches go."""

    times_s: NDArray[np.float64]  # of each, shape (batches,)
    sizes: NDArray[np.int64]
    tokens: list[float]  # what the first ones leave of the pacer's; the others leave none


def schedule(pacer: Pacer, now_s: float, count: int, beyond: int) -> Schedule:
    """The pacer's, for whole batches of so many datagrams, if nothing happens."""
    size_bytes, quantum, bytes_per_s = pacer.datagram_bytes, pacer.quantum, pacer.bytes_per_s
    at_s = pacer.next_s(now_s, count + beyond)
    assert pacer.refilled_s is not None  # it has just looked
    tokens = min(pacer.tokens + bytes_per_s * (at_s - pacer.refilled_s), pacer.most_tokens)
    times_s, sizes, left_over, left = list[float](), list[int](), list[float](), count
    while left and not (sizes and abs(tokens) < 1):
        size = min(int((tokens + 1) // size_bytes), pacer.most)
        if size > left and beyond:
            left = 0
            break
        size = min(size, left)
        tokens -= size * size_bytes
        left -= size
        times_s.append(at_s)
        sizes.append(size)
        left_over.append(tokens)
        lacking = min(quantum, left + beyond) * size_bytes - tokens
        if lacking > 1 and abs(tokens) >= 1:  # the pacer says why
            at_s += lacking / bytes_per_s
            tokens = min(tokens + lacking, pacer.most_tokens)
    # From here on each batch takes what has been waited for, and all waits but the last are equal.
    full, rest = divmod(left, quantum)
    awaited = np.full(full + bool(rest and not beyond), quantum, np.int64)
    if len(awaited) > full:
        awaited[-1] = rest
    later_s = at_s + ((awaited * size_bytes).cumsum() - tokens) / bytes_per_s
    return Schedule(
        np.concatenate((times_s, later_s)),
        np.concatenate((np.array(sizes, np.int64), awaited)),
        left_over,
    )


class Ahead:
    """Datagrams that were sent ahead."""

    batch: Batch  # on the links; whoever made it sets it

    def __init__(self, departures: Departures, now_s: float) -> None:
        self._departures = departures
        composer = departures.composer
        count = min(len(departures.chunks), _MOST)
        beyond = departures.beyond + len(departures.chunks) - count
        self._schedule = schedule(departures.pacer, now_s, count, beyond)
        self.times_s = self._schedule.times_s.repeat(self._schedule.sizes)  # of departure
        count = len(self.times_s)
        room, parts = len(composer.frames), []
        for begin in range(0, count, room):
            chunks = departures.chunks[begin : min(count, begin + room)]
            composer.compose(chunks, departures.first + begin, ask=0)
            parts.append(headers.kept(composer.frames[: len(chunks)]))
        self.frames = parts[0] if len(parts) == 1 else np.concatenate(parts or [_NOTHING])
        self.size_bytes = composer.frames.shape[1]

    @property
    def over_s(self) -> float:
        """When the last one departs."""
        return float(self.times_s[-1])

    def settle(self, connection: Connection, now_s: float) -> int:
        """Reports what has departed by now; nothing else does. Returns how many have not."""
        times_s, sizes, tokens = self._schedule
        count = int(times_s.searchsorted(now_s, side="right"))
        self.batch.recall(now_s)
        if not count:
            return len(self.times_s)
        pacer = self._departures.pacer
        pacer.tokens = tokens[count - 1] if count <= len(tokens) else 0.0
        pacer.refilled_s = float(times_s[count - 1])
        sent = list(zip(sizes[:count].tolist(), times_s[:count].tolist(), strict=True))
        connection.outgoing.departed(self._departures, sent)
        return int(sizes[count:].sum())
