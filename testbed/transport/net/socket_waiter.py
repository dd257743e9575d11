"""Waits for sockets with timeouts as short as microseconds."""

import selectors
from collections.abc import Iterable
from typing import Any

# epoll rounds its timeout up to whole milliseconds, which is as long as a whole batch of the pacer.
# select takes microseconds, but only descriptors below this limit.
_SELECT_LIMIT = 1024


class Waiter:
    """A selector to which each wait names its sockets; unchanged sockets cost nothing."""

    def __init__(self) -> None:
        self._selector: selectors.BaseSelector = selectors.SelectSelector()
        self._interest: dict[Any, int] = {}

    def wait(
        self, *, readable: Iterable[Any], writable: Iterable[Any], timeout_s: float
    ) -> tuple[set[Any], set[Any]]:
        """Waits until one of the objects (each with a fileno()) is ready, or for `timeout_s`.

        Returns those that are ready for reading and those that are ready for writing.
        """
        wanted: dict[Any, int] = {}
        for item in readable:
            wanted[item] = selectors.EVENT_READ
        for item in writable:
            wanted[item] = wanted.get(item, 0) | selectors.EVENT_WRITE
        if wanted != self._interest:
            self._change(wanted)
        ready_to_read, ready_to_write = set(), set()
        for key, events in self._selector.select(max(0.0, timeout_s)):
            if events & selectors.EVENT_READ:
                ready_to_read.add(key.fileobj)
            if events & selectors.EVENT_WRITE:
                ready_to_write.add(key.fileobj)
        return ready_to_read, ready_to_write

    def _change(self, wanted: dict[Any, int]) -> None:
        for item in self._interest.keys() - wanted.keys():
            self._selector.unregister(item)
        high = any(item.fileno() >= _SELECT_LIMIT for item in wanted)
        if high and isinstance(self._selector, selectors.SelectSelector):
            self._selector.close()
            self._selector = selectors.DefaultSelector()
            self._interest = {}
        for item, events in wanted.items():
            if item not in self._interest:
                self._selector.register(item, events)
            elif self._interest[item] != events:
                self._selector.modify(item, events)
        self._interest = wanted

    def close(self) -> None:
        """Frees the selector; the sockets stay open."""
        self._selector.close()
