"""Drives all connections of an endpoint in one thread: sockets and clock on one side of each.

What it does for one peer at a time is bounded, so that no peer can starve the others.
"""

import itertools
import math
import os
import select
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from testbed.transport.events import Event
from testbed.transport.native.hot_path import Arriving, Departing, Polled, wait_working
from testbed.transport.net.link import DataChannel, Link
from testbed.transport.net.listener import Listener
from testbed.transport.net.stream import Stream
from testbed.transport.routine import COALESCED_S

_LINGER_S = 1.0
_LONGEST_WAIT_S = 60.0  # a selector takes no infinite one
# Connections that have ended stay a while, so that their last message can be read.
_MOST_ENDED = 16
# During a longer wait nobody would hear a signal.
_LONGEST_ROUTINE_S = 0.1


class Waiter:
    """The sockets of which something is wanted. Those that stay as they are cost no call."""

    def __init__(self) -> None:
        self._wanted: dict[Any, tuple[int, int]] = {}  # descriptor and events, as poll has them
        self._items: dict[int, Any] = {}
        self._polled: Polled | None = None  # of what is wanted now

    def want(self, item: Any, *, reading: bool, writing: bool) -> None:
        """From now on waits until the item can be read, or written, or for neither."""
        events = reading * select.POLLIN | writing * select.POLLOUT
        known = self._wanted.get(item)
        if known is not None and known[1] == events:
            return
        descriptor = item.fileno() if known is None else known[0]
        self._wanted[item], self._items[descriptor] = (descriptor, events), item
        self._polled = None

    def forget(self, item: Any) -> None:
        """Nothing is wanted any more; call it before the item's socket is closed."""
        known = self._wanted.pop(item, None)
        if known is not None and self._items.get(known[0]) is item:
            del self._items[known[0]]
        self._polled = None

    def wait(
        self, until_s: float, going: Sequence[Departing] = (), coming: Sequence[Arriving] = ()
    ) -> tuple[list[Any], list[Any]]:
        """Waits until an item can be read or written, a time comes, or a routine is over.

        Returns the items that can be read, and those that can be written or have an error.
        """
        if self._polled is None:
            self._polled = Polled([each for each in self._wanted.values() if each[1]])
        found = wait_working(going, coming, self._polled, until_s)
        items = [(self._items[descriptor], events) for descriptor, events in found]
        ready, roomy = (
            [item for item, events in items if self._wanted[item][1] & kind and events & ~other]
            for kind, other in ((select.POLLIN, select.POLLOUT), (select.POLLOUT, select.POLLIN))
        )
        return ready, roomy


class Alarm:
    """A descriptor that can be read once it has been rung."""

    def __init__(self) -> None:
        self.rung = False  # whether it has been rung since it was last cleared
        self._descriptor = -1
        # The descriptor's number may be another file's once it is closed.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """For a selector; opens it first."""
        if self._descriptor < 0:
            with self._lock:
                self._descriptor = os.eventfd(int(self.rung), os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self._descriptor

    def ring(self) -> None:
        """Any thread may call it, also when nobody waits yet or any more."""
        with self._lock:
            if not self.rung and self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)
            self.rung = True

    def clear(self) -> None:
        """The one who waited has heard it."""
        with self._lock:
            if self.rung and self._descriptor >= 0:
                os.eventfd_read(self._descriptor)
            self.rung = False

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def abandon(self) -> None:
        """In a process that was forked, perhaps while another thread of its parent rang."""
        self._lock = threading.Lock()
        self.close()


class Driver:
    """Runs the links of one endpoint."""

    def __init__(self, on_event: Callable[[str, Event], None]) -> None:
        """`on_event` hears what connections tell, with the peer's name."""
        self.links: dict[str, Link] = {}  # the peers that have not ended, by name
        self.listeners: list[Listener] = []  # the listening ports
        self.alarm = Alarm()  # ends a wait from another thread
        self._on_event = on_event
        self._waiter = Waiter()
        # By name, of those links that have been worked on: when each wants to be, and until when
        # its arrivals gather.
        self._due_s: dict[str, float] = {}
        self._gathering_s: dict[str, float] = {}
        self._routines: dict[str, DataChannel] = {}
        self._owners: dict[Any, str] = {}
        self._accepting: set[Any] = set()
        self._ended: list[Stream] = []
        self._attentive = self._until_alarm = False

    def run(
        self,
        finished: Callable[[], bool],
        until_s: float = math.inf,
        peers: Callable[[], Collection[str]] | None = None,
        *,
        until_alarm: bool = False,
    ) -> bool:
        """Works until `finished` and all that was said is on its way; False when time is over."""
        self._attentive = False  # what came while nobody looked may have waited for long
        self._until_alarm = until_alarm
        for link in self.links.values():
            link.data.wake()
        self._due_s.clear()  # the application may have changed anything
        self._gathering_s.clear()
        over = False
        while True:
            self._work(time.monotonic())
            if finished():
                needed = self.links if peers is None else peers()
                if not any(
                    link.stream.has_unsent for name, link in self.links.items() if name in needed
                ):
                    return True
            if over:
                return False
            self._wait(until_s)
            self._attentive = True
            over = time.monotonic() >= until_s

    def touch(self, name: str) -> None:
        """The application has given a link something to do."""
        self._due_s[name] = -math.inf

    def end(self, name: str) -> None:
        """Ends a link; its last messages may still be read by the peer."""
        link = self.links.pop(name)
        self._due_s.pop(name, None)
        self._gathering_s.pop(name, None)
        self._routines.pop(name, None)
        for channel in (link.stream, link.data, link.hedges):
            self._owners.pop(channel, None)
            self._waiter.forget(channel)
        if link.hedges is not None:
            link.hedges.close()
        self.close_later(link.stream)

    def close_later(self, stream: Stream) -> None:
        """Ends a stream, which stays a while so that what was said last can be read."""
        stream.finish()
        self._ended.append(stream)
        if len(self._ended) > _MOST_ENDED:
            self._ended.pop(0).close()

    def _work(self, now_s: float) -> None:
        if self._due_s.keys() != self.links.keys():
            for name in self.links:
                self._due_s.setdefault(name, -math.inf)
        due = [name for name, due_s in self._due_s.items() if due_s <= now_s]
        if due and self._gathering_s:
            soon_s = now_s + COALESCED_S
            due += [
                name
                for name, until_s in self._gathering_s.items()
                if until_s <= soon_s and self._due_s[name] > now_s
            ]
        for name in due:
            if (link := self.links.get(name)) is None:
                continue  # what another one told has ended it
            link.work(now_s, looked=self._attentive)
            self._due_s[name] = link.due_s
            while events := link.connection.events():  # hearing one may cause the next
                for event in events:
                    self._on_event(name, event)
            if self.links.get(name) is link:
                self._attend(name, link)

    def _attend(self, name: str, link: Link) -> None:
        """Waits for a link's sockets, as it wants now."""
        stream, data = link.stream, link.data
        self._waiter.want(stream, reading=True, writing=stream.has_unsent)
        self._owners[stream] = name
        if link.hedges is not None:
            self._waiter.want(link.hedges, reading=True, writing=False)
            self._owners[link.hedges] = name
        if not link.has_data:
            return
        unread_until_s = data.unread_until_s
        if link.routine:
            self._routines[name] = data
        else:
            self._routines.pop(name, None)
        if unread_until_s > -math.inf and (not link.routine or data.coming is None):
            self._gathering_s[name] = unread_until_s
        else:
            self._gathering_s.pop(name, None)
        reading = data.reading and unread_until_s == -math.inf
        self._waiter.want(data, reading=reading, writing=data.blocked)
        self._owners[data] = name

    def _wait(self, until_s: float) -> None:
        until_s = min(until_s, self._serve_listeners(), *self._due_s.values())
        self._waiter.want(self.alarm, reading=self._until_alarm, writing=False)
        longest_s = _LONGEST_ROUTINE_S if self._routines else _LONGEST_WAIT_S
        routines = self._routines.values()
        try:
            ready, roomy = self._waiter.wait(
                min(until_s, time.monotonic() + longest_s),
                [data.going for data in routines if data.going is not None],
                [data.coming for data in routines if data.coming is not None],
            )
        finally:  # also when a signal's handler raises: what was done is done
            self._end_routines()
        now_s = time.monotonic()
        # In the order of the links, not of their sockets.
        woken = {self._owners[item] for item in (*ready, *roomy) if item in self._owners}
        for name in woken if len(woken) < 2 else [each for each in self.links if each in woken]:
            link = self.links[name]
            if link.stream in roomy:
                link.stream.flush()
            if link.stream in ready or link.data in ready or link.hedges in ready:
                link.take(ready, now_s, attentive=self._attentive)
            self._due_s[name] = -math.inf
        self._welcome(ready, roomy, now_s)

    def _end_routines(self) -> None:
        """Notes what was done of the links' routines during the wait."""
        for name, data in [each for each in self._routines.items() if each[1].worked]:
            del self._routines[name]
            link = self.links.get(name)
            if link is not None and link.routine and link.data is data:
                link.end_routine(time.monotonic())
                self._due_s[name] = -math.inf

    def _serve_listeners(self) -> float:
        """Waits for who comes; returns until when at most."""
        here: set[Any] = {*self.listeners}
        until_s = math.inf
        for listener in self.listeners:
            self._waiter.want(listener, reading=True, writing=False)
            for arrival in listener.arrivals:
                self._waiter.want(arrival, reading=True, writing=arrival.stream.has_unsent)
                here.add(arrival)
            until_s = min(until_s, listener.until_s)
        for gone in self._accepting - here:
            self._waiter.forget(gone)
        self._accepting = here
        return until_s

    def _welcome(self, ready: Collection[Any], roomy: Collection[Any], now_s: float) -> None:
        if not self._accepting.isdisjoint(ready):
            self._due_s.clear()  # a link may get its data's connection
        for listener in self.listeners:
            for arrival in list(listener.arrivals):
                if arrival in roomy:
                    arrival.stream.flush()
                if arrival in ready:
                    listener.read(arrival)
            if listener in ready:
                listener.accept(now_s)
            listener.expire(now_s)

    def close(self) -> None:
        """Ends all links and listeners. What was said before still arrives."""
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()
        self._waiter.forget(self.alarm)
        self.alarm.close()
        for name in list(self.links):
            self.end(name)
        until_s = time.monotonic() + _LINGER_S
        for stream in self._ended:
            stream.close(until_s)
        self._ended.clear()

    def abandon(self) -> None:
        """Closes this process's copies of a parent's links and listeners. Nothing is said."""
        ends = ((link.stream, link.hedges) for link in self.links.values())
        for held in (*self.listeners, *self._ended, *itertools.chain(*ends)):
            if held is not None:
                held.close()
