"""Waits for sockets with timeouts as short as microseconds."""

import math
import select
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from testbed.transport.native.routine import Arriving, Departing, Polled, wait_working

# epoll rounds its timeout up to whole milliseconds, which is as long as a whole batch of the pacer.
# select takes microseconds, but only descriptors below this limit.
_SELECT_LIMIT = 1024


class Waiter:
    """The sockets of which something is wanted. Those that stay as they are cost no call."""

    def __init__(self) -> None:
        self._wanted: dict[Any, tuple[int, bool, bool]] = {}
        self._readers: dict[int, Any] = {}
        self._writers: dict[int, Any] = {}
        self._highest = 0
        self._polled: Polled | None = None  # of what is wanted now

    def want(self, item: Any, *, reading: bool, writing: bool) -> None:
        """From now on waits until the item can be read, or written, or for neither."""
        known = self._wanted.get(item)
        if known is not None and known[1] == reading and known[2] == writing:
            return
        descriptor = item.fileno() if known is None else known[0]
        self._wanted[item] = descriptor, reading, writing
        for wanted, items in ((reading, self._readers), (writing, self._writers)):
            if wanted:
                items[descriptor] = item
            else:
                items.pop(descriptor, None)
        self._highest = max(self._highest, descriptor)
        self._polled = None

    def forget(self, item: Any) -> None:
        """Nothing is wanted any more; call it before the item's socket is closed."""
        known = self._wanted.pop(item, None)
        if known is not None:
            for items in (self._readers, self._writers):
                if items.get(known[0]) is item:
                    del items[known[0]]
        self._polled = None

    def wait(self, timeout_s: float) -> tuple[list[Any], list[Any]]:
        """Waits until one of the items is ready, or for `timeout_s`."""
        if self._highest >= _SELECT_LIMIT:
            poller = select.poll()
            for descriptor, events in self._events():
                poller.register(descriptor, events)
            return self._sides(poller.poll(max(0, math.ceil(timeout_s * 1000))))
        ready, roomy, _ = select.select(self._readers, self._writers, (), max(0.0, timeout_s))
        return [self._readers[each] for each in ready], [self._writers[each] for each in roomy]

    def wait_working(
        self, until_s: float, going: Sequence[Departing], coming: Sequence[Arriving]
    ) -> tuple[list[Any], list[Any]]:
        """The same until a time, while routines are done; returns also when one of them is over."""
        if self._polled is None:
            self._polled = Polled(self._events())
        return self._sides(wait_working(going, coming, self._polled, until_s))

    def _events(self) -> list[tuple[int, int]]:
        """What is wanted of each descriptor."""
        return [
            (
                descriptor,
                (select.POLLIN if descriptor in self._readers else 0)
                | (select.POLLOUT if descriptor in self._writers else 0),
            )
            for descriptor in self._readers.keys() | self._writers.keys()
        ]

    def _sides(self, found: Iterable[tuple[int, int]]) -> tuple[list[Any], list[Any]]:
        # An error is found by reading or writing.
        found = list(found)
        ready: Collection[int] = [each for each, events in found if events & ~select.POLLOUT]
        roomy: Collection[int] = [each for each, events in found if events & ~select.POLLIN]
        return (
            [self._readers[each] for each in ready if each in self._readers],
            [self._writers[each] for each in roomy if each in self._writers],
        )
