"""Stand-ins for what a driver drives: streams, links, data channels, and what it waits with."""

import math
from types import SimpleNamespace
from typing import Any, cast

from testbed.transport.net.driver import Driver, Waiter
from testbed.transport.net.link import DataChannel, Link


class Stream:
    has_unsent = False
    until_s = math.inf
    closed = None
    expired_s = None

    def write(self, data):
        """Nobody reads it."""

    def expire(self, now_s):
        self.expired_s = now_s

    def finish(self):
        """Nothing is left to say."""


class CountingLink(Link):
    """A link whose channels and calls are seen; `due_s` says when it wants to be worked on."""

    def __init__(self, due_s=math.inf):
        self.calls, self.looked, self.due_s, self.data = [], [], due_s, None
        self.stream = cast(Any, Stream())
        self.connection = cast(Any, SimpleNamespace(events=list))
        self.then = lambda: None

    def work(self, now_s, *, looked=True):
        self.calls.append("work")
        self.looked.append(looked)
        self.then()

    def take(self, ready, now_s, *, attentive):
        self.calls.append("take")


class FakeWaiter(Waiter):
    """Wakes up as it is told: for each wait, the streams that can be read."""

    def __init__(self, wakes):
        self.wakes, self.wanted, self.reading = wakes, [], {}

    def want(self, item, *, reading, writing):
        self.wanted.append(item)
        self.reading[item] = reading

    def forget(self, item):
        """Nothing is kept."""

    def wait(self, timeout_s):
        return self.wakes.pop(0), []


class RestingData(DataChannel):
    """What has come at the peer may gather until `until_s`; it notes how it is read."""

    def __init__(self, until_s):
        self.until_s, self.read_waited = until_s, []

    def fileno(self):
        return -1

    def read(self, connection, now_s, *, waited):
        self.read_waited.append(waited)
        self.until_s = -math.inf

    def read_backlog(self, connection, now_s, *, waited):
        """Nothing."""

    def write(self, connection, now_s):
        """Nothing."""

    def due_s(self, connection_due_s):
        return connection_due_s

    @property
    def blocked(self):
        return False

    @property
    def unread_until_s(self):
        return self.until_s

    def wake(self):
        self.until_s = -math.inf


def driver_of(links, wakes):
    """A driver of these links that wakes up so often, and its waiter."""
    driver, waiter = Driver(lambda name, event: None), FakeWaiter(wakes)
    driver.links.update(links)
    driver._waiter = waiter
    return driver, waiter
