"""Waits for sockets with timeouts as short as microseconds."""

import math
import select
from collections.abc import Collection
from typing import Any

# epoll rounds its timeout up to whole milliseconds, which is as long as a whole batch of the pacer.
# select takes microseconds, but only descriptors below this limit.
_SELECT_LIMIT = 1024


class Waiter:
    """The sockets of which something is wanted. Those that stay as they are cost no call.

    An item is any object with a fileno(), which must not change before `forget`.
    """

    def __init__(self) -> None:
        self._wanted: dict[Any, tuple[int, bool, bool]] = {}
        self._readers: dict[int, Any] = {}
        self._writers: dict[int, Any] = {}
        self._highest = 0

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

    def forget(self, item: Any) -> None:
        """Nothing is wanted any more; call it before the item's socket is closed."""
        known = self._wanted.pop(item, None)
        if known is not None:
            for items in (self._readers, self._writers):
                if items.get(known[0]) is item:
                    del items[known[0]]

    def wait(self, timeout_s: float) -> tuple[list[Any], list[Any]]:
        """Waits until one of the items is ready, or for `timeout_s`.

        Returns those that are ready for reading and those that are ready for writing.
        """
        if self._highest >= _SELECT_LIMIT:
            ready, roomy = self._poll(timeout_s)
        else:
            ready, roomy, _ = select.select(self._readers, self._writers, (), max(0.0, timeout_s))
        return [self._readers[each] for each in ready], [self._writers[each] for each in roomy]

    def _poll(self, timeout_s: float) -> tuple[Collection[int], Collection[int]]:
        poller = select.poll()
        for descriptor in self._readers.keys() | self._writers.keys():
            events = select.POLLIN if descriptor in self._readers else 0
            events |= select.POLLOUT if descriptor in self._writers else 0
            poller.register(descriptor, events)
        found = poller.poll(max(0, math.ceil(timeout_s * 1000)))
        # An error is found by reading or writing.
        ready = [each for each, events in found if events & ~select.POLLOUT]
        roomy = [each for each, events in found if events & ~select.POLLIN]
        return (
            [each for each in ready if each in self._readers],
            [each for each in roomy if each in self._writers],
        )
