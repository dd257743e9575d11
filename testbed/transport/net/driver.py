"""Drives all connections of an endpoint in one thread: sockets and clock on one side of each.

What it does for one peer at a time is bounded, so that no peer can starve the others.
"""

import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.transport.connection import Connection, ConnectionState
from testbed.transport.events import OBSERVATION_INTERVAL_S, Event, Observer
from testbed.transport.fast_path import COALESCED_S
from testbed.transport.native.fast_path import PlannedReceive, PlannedSend, Polled, wait_with_plans
from testbed.transport.net.control import ControlSocket, Listener, Stream

_LINGER_S = 1.0
_LONGEST_WAIT_S = 60.0  # poll takes no infinite one
_LONGEST_PLAN_S = 0.1  # a signal is handled only between waits
# Connections that have ended stay a while, so that their last message can be read.
_MOST_ENDED = 16
# What is read of a peer's control messages at a time, unless one alone is longer: the shortest that
# need work, empty ACKs, then take some milliseconds, and other peers are served in between.
_CONTROL_BYTES = 1 << 11


class Waiter:
    """Waits for sockets; those whose events stay the same cost no call."""

    def __init__(self) -> None:
        self._events: dict[Any, tuple[int, int]] = {}  # of each item: descriptor, events of poll
        self._items: dict[int, Any] = {}
        self._polled: Polled | None = None  # made of these events

    def register(self, item: Any, *, reading: bool, writing: bool) -> None:
        """Waits from now on until the item can be read, or written, or for neither."""
        events = reading * select.POLLIN | writing * select.POLLOUT
        registered = self._events.get(item)
        if registered is not None and registered[1] == events:
            return
        descriptor = item.fileno() if registered is None else registered[0]
        self._events[item], self._items[descriptor] = (descriptor, events), item
        self._polled = None

    def unregister(self, item: Any) -> None:
        """Waits for the item no longer; call it before the item's socket is closed."""
        registered = self._events.pop(item, None)
        if registered is not None and self._items.get(registered[0]) is item:
            del self._items[registered[0]]
        self._polled = None

    def wait(
        self,
        until_s: float,
        sends: Sequence[PlannedSend] = (),
        receives: Sequence[PlannedReceive] = (),
    ) -> tuple[list[Any], list[Any]]:
        """Waits until then; returns items that can be read, and to be written or in error."""
        if self._polled is None:
            self._polled = Polled([entry for entry in self._events.values() if entry[1]])
        ready = wait_with_plans(sends, receives, self._polled, until_s)
        items = [(self._items[descriptor], events) for descriptor, events in ready]
        readable, writable = (
            [item for item, events in items if self._events[item][1] & kind and events & ~other]
            for kind, other in ((select.POLLIN, select.POLLOUT), (select.POLLOUT, select.POLLIN))
        )
        return readable, writable


class Alarm:
    """Ends a wait of the driver from another thread."""

    def __init__(self) -> None:
        self.is_set = False
        # Without it a byte could come after `clear`, and sockets be another file's once closed.
        self._lock = threading.Lock()
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def set(self) -> None:
        """Wakes up a wait, now or later; any thread may call it, also after `close`."""
        with self._lock, contextlib.suppress(OSError):  # closed
            if not self.is_set:
                self.is_set = True
                self._sender.send(b"!")

    def clear(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            self.is_set = False
            self._receiver.recv(64)

    def close(self) -> None:
        with self._lock:
            self._receiver.close()
            self._sender.close()

    def abandon(self) -> None:
        """Closes it in a process that was forked, perhaps while another thread held the lock."""
        self._lock = threading.Lock()
        self.close()


class DataChannel:
    """Carries the data between this side and one peer; this one carries nothing."""

    # Plans that are carried out during a wait: see `fast_path`.
    sending: PlannedSend | None = None
    receiving: PlannedReceive | None = None
    # Until when arrivals may coalesce before they are `read`; -math.inf for not at all.
    unread_until_s = -math.inf
    blocked = False  # whether `write` waits until there is room in the socket

    def fileno(self) -> int:
        return -1

    def read(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        """Hands over what has arrived, up to a limit."""

    def read_backlog(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        """Hands over all that arrived before now."""

    def write(self, connection: Connection, now_s: float) -> None:
        """Sends what the connection offers, up to a limit."""

    def due_s(self, connection_due_s: float) -> float:
        return connection_due_s

    @property
    def reading(self) -> bool:
        return True

    def begin_plans(self, connection: Connection, now_s: float) -> bool:
        """Sets `sending` and `receiving`; returns whether there is a plan."""
        return False

    @property
    def worked(self) -> bool:
        """Says whether a plan has done anything, or leaves a decision: then it must be ended."""
        plans = (self.sending, self.receiving)
        return any(plan is not None and plan.worked for plan in plans)

    def end_plans(self, connection: Connection, now_s: float) -> None:
        """Reports what the plans did during a wait that is over."""

    def wake_up(self) -> None:
        self.unread_until_s = -math.inf


NO_DATA = DataChannel()


@dataclass(eq=False)
class Link:
    connection: Connection
    stream: Stream
    data: DataChannel = NO_DATA
    observer: Observer | None = None
    whole_by_s: float = math.inf  # the connection ends if it has no data channel by then
    datagrams: ControlSocket | None = None  # of control messages
    planned = False  # whether `data` has plans, which are carried out while the driver waits
    due_s = -math.inf  # when `work` has to be called at the latest
    _deadline_s = -math.inf
    _observe_s = -math.inf

    @property
    def has_data(self) -> bool:
        return self.data is not NO_DATA

    @property
    def present(self) -> bool:
        return self.has_data and self.connection.state is ConnectionState.OPEN

    @property
    def coalesces_until_s(self) -> float:
        """Until when arrivals coalesce outside of plans; -math.inf for not at all."""
        receives = self.planned and self.data.receiving is not None
        return -math.inf if receives else self.data.unread_until_s

    def receive(self, ready: Collection[Any], now_s: float, *, attentive: bool) -> None:
        data, connection = self.data, self.connection
        if self.stream in ready:
            waited = not attentive or not self.stream.drained  # the rest of the last call
            received = self.stream.read(max(_CONTROL_BYTES, connection.awaited_bytes))
            # What was sent before must not be reported as missing, and may still wait.
            data.read_backlog(connection, now_s, waited=not attentive)
            if received:
                connection.on_control(received, now_s, waited=waited)
        elif data in ready:
            data.read(connection, now_s, waited=not attentive)
        if self.datagrams is not None and self.datagrams in ready:
            data.read_backlog(connection, now_s, waited=not attentive)
            self.datagrams.read(connection, now_s, waited=not attentive)

    def work(self, now_s: float, *, attentive: bool = True) -> None:
        """Does what is due. No deadline passes unless `attentive`: what came is to be read yet."""
        connection, data, self.planned = self.connection, self.data, False
        if -math.inf < data.unread_until_s <= now_s + COALESCED_S:
            data.read(connection, now_s, waited=True)
        if attentive and now_s >= self._deadline_s:
            connection.on_deadline(now_s)
        if self.observer is not None and now_s >= self._observe_s:
            sender = next(iter(connection.outgoing.senders.values()), None)
            if sender is not None:
                self._observe_s = now_s + OBSERVATION_INTERVAL_S
                self.observer(sender.observe(connection.peer, now_s))
        self._write_control(now_s)  # ENERGY goes before the data that it describes
        data.write(connection, now_s)
        self._write_control(now_s)
        if attentive:
            self.stream.expire(now_s)
        if self.stream.closed is not None:
            connection.end(self.stream.closed)
        if attentive:
            if not self.has_data and now_s >= self.whole_by_s:
                connection.end("it opened no connection for its data")
            self.planned = data.begin_plans(connection, now_s)
        self.due_s = self.reconsidered_s(now_s)

    def reconsidered_s(self, now_s: float) -> float:
        """Returns until when nothing is due, unless something happens."""
        connection, data = self.connection, self.data
        sending = self.planned and data.sending is not None
        deadline_s = connection.next_deadline_s(now_s, planned=sending)
        self._deadline_s = math.inf if deadline_s is None else deadline_s
        due_s = data.due_s(self._deadline_s)
        if self.coalesces_until_s > -math.inf:
            due_s = min(due_s, self.coalesces_until_s)
        if sending and self.observer is not None:
            due_s = min(due_s, self._observe_s)
        if connection.lost is None:
            due_s = min(due_s, self.stream.until_s)
            due_s = min(due_s, math.inf if self.has_data else self.whole_by_s)
        return due_s

    def _write_control(self, now_s: float) -> None:
        if messages := self.connection.control():
            self.stream.write(messages)
        datagrams = self.connection.control_datagrams(now_s)
        if self.datagrams is not None:  # else they are lost, and TCP carries all in the end
            self.datagrams.write(datagrams)

    def leave(self) -> None:
        self.connection.leave()
        if messages := self.connection.control():
            self.stream.write(messages)


class Driver:
    def __init__(self, on_event: Callable[[str, Event], None]) -> None:
        self.links: dict[str, Link] = {}  # the peers that have not ended, by name
        self.listeners: list[Listener] = []
        self.alarm = Alarm()  # ends a wait from another thread
        self._on_event = on_event
        self._waiter = Waiter()
        self._due_s: dict[str, float] = {}  # of the links that have worked, by name
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
        """Works until `finished` and all messages to `peers` have gone; False at `until_s`."""
        self._attentive = False  # what came between two calls may have waited for long
        self._until_alarm = until_alarm
        now_s = time.monotonic()
        for name, link in self.links.items():
            # What coalesces is read at once, and what was left unsent needs a place to be sent.
            if link.data.unread_until_s > -math.inf or link.stream.has_unsent:
                link.data.wake_up()
                self.notify(name)
            elif self._due_s.get(name, -math.inf) > now_s:
                # Stop rules may have changed, also because of what came from other peers.
                link.planned = False
                self._due_s[name] = link.reconsidered_s(now_s)
        over = False
        while True:
            self._work(time.monotonic())
            if finished():
                needed = self.links if peers is None else peers()
                for link in self.links.values():
                    link.leave()
                if not any(
                    link.stream.has_unsent for name, link in self.links.items() if name in needed
                ):
                    return True
            if over:
                return False
            self._wait(until_s)
            self._attentive = True
            over = time.monotonic() >= until_s

    def notify(self, name: str) -> None:
        """Lets a link work at once, since the application has given it something to do."""
        self._due_s[name] = -math.inf

    def end(self, name: str) -> None:
        """Ends a link; its last messages may still be read by the peer."""
        link = self.links.pop(name)
        self._due_s.pop(name, None)
        for channel in (link.stream, link.data, link.datagrams):
            self._waiter.unregister(channel)
        if link.datagrams is not None:
            link.datagrams.close()
        self.close_later(link.stream)

    def close_later(self, stream: Stream) -> None:
        """Ends a stream, which stays a while so that its last message can be read."""
        stream.finish()
        self._ended.append(stream)
        if len(self._ended) > _MOST_ENDED:
            self._ended.pop(0).close()

    def _work(self, now_s: float) -> None:
        if self._due_s.keys() != self.links.keys():
            for name in self.links:
                self._due_s.setdefault(name, -math.inf)
        due = [name for name, due_s in self._due_s.items() if due_s <= now_s]
        if due:
            due += [
                name
                for name, link in self.links.items()
                if -math.inf < link.coalesces_until_s <= now_s + COALESCED_S
                and self._due_s[name] > now_s
            ]
        for name in due:
            if (link := self.links.get(name)) is None:
                continue  # another link's event has ended it
            link.work(now_s, attentive=self._attentive)
            self._due_s[name] = link.due_s
            while events := link.connection.events():  # one may cause the next
                for event in events:
                    self._on_event(name, event)
            if self.links.get(name) is link:
                self._register(link)

    def _register(self, link: Link) -> None:
        self._waiter.register(link.stream, reading=True, writing=link.stream.has_unsent)
        if link.datagrams is not None:
            self._waiter.register(link.datagrams, reading=True, writing=False)
        if link.has_data:
            data, coalescing = link.data, link.data.unread_until_s > -math.inf
            reading = data.reading and not coalescing
            self._waiter.register(data, reading=reading, writing=data.blocked)

    def _wait(self, until_s: float) -> None:
        until_s = min(until_s, self._register_listeners(), *self._due_s.values())
        self._waiter.register(self.alarm, reading=self._until_alarm, writing=False)
        planned = [link.data for link in self.links.values() if link.planned]
        longest_s = _LONGEST_PLAN_S if planned else _LONGEST_WAIT_S
        try:
            readable, writable = self._waiter.wait(
                min(until_s, time.monotonic() + longest_s),
                [data.sending for data in planned if data.sending is not None],
                [data.receiving for data in planned if data.receiving is not None],
            )
        finally:  # also when a signal's handler raises: the plans may have worked
            self._end_plans()
        now_s = time.monotonic()
        ready = {*readable, *writable}
        for name, link in self.links.items():
            if ready.isdisjoint((link.stream, link.data, link.datagrams)):
                continue
            if link.stream in writable:
                link.stream.flush()
            if not {link.stream, link.data, link.datagrams}.isdisjoint(readable):
                link.receive(readable, now_s, attentive=self._attentive)
            self._due_s[name] = -math.inf
        self._serve_listeners(readable, writable, now_s)

    def _end_plans(self) -> None:
        for name, link in self.links.items():
            if link.planned and link.data.worked:
                link.planned = False
                link.data.end_plans(link.connection, time.monotonic())
                self._due_s[name] = -math.inf

    def _register_listeners(self) -> float:
        accepting: set[Any] = {*self.listeners}
        for listener in self.listeners:
            self._waiter.register(listener, reading=True, writing=False)
            for arrival in listener.arrivals:
                self._waiter.register(arrival, reading=True, writing=arrival.stream.has_unsent)
            accepting.update(listener.arrivals)
        for gone in self._accepting - accepting:
            self._waiter.unregister(gone)
        self._accepting = accepting
        return min((listener.until_s for listener in self.listeners), default=math.inf)

    def _serve_listeners(
        self, readable: Collection[Any], writable: Collection[Any], now_s: float
    ) -> None:
        if not self._accepting.isdisjoint(readable):
            self._due_s.clear()  # a link may get its data's connection
        for listener in self.listeners:
            for arrival in list(listener.arrivals):
                if arrival in writable:
                    arrival.stream.flush()
                if arrival in readable:
                    listener.read(arrival)
            if listener in readable:
                listener.accept(now_s)
            listener.expire(now_s)

    def close(self) -> None:
        """Ends all links and listeners. Messages that were sent before still arrive."""
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()
        self._waiter.unregister(self.alarm)
        self.alarm.close()
        for name in list(self.links):
            self.end(name)
        until_s = time.monotonic() + _LINGER_S
        for stream in self._ended:
            stream.close(until_s)
        self._ended.clear()

    def abandon(self) -> None:
        """Closes a forked process's copies of links and listeners, and sends nothing."""
        self.alarm.abandon()
        for listener in self.listeners:
            listener.close()
        for stream in self._ended:
            stream.close()
        for link in self.links.values():
            link.stream.close()
            if link.datagrams is not None:
                link.datagrams.close()
