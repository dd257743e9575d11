"""Applications that are busy for longer than peers are patient, and peers that are idle."""

import math
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from testbed.transport.net.driver import NO_DATA, DataChannel, Driver, Link, Waiter
from tests.transport.loopback import both, in_thread, joined, site
from tests.transport.virtual import TIMEOUT_S, Two, gone, random_payload


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

    def __init__(self):
        self.calls, self.due_s, self.data = [], math.inf, NO_DATA
        self.stream = cast(Any, Stream())
        self.connection = cast(Any, SimpleNamespace(events=list))
        self.then = lambda: None

    def work(self, now_s, *, attentive=True):
        self.calls.append("work")
        self.then()

    def receive(self, ready, now_s, *, attentive):
        self.calls.append("take")

    def leave(self):
        pass


class FakeWaiter(Waiter):
    """Wakes up as scripted: for each wait, the streams that can be read."""

    def __init__(self, wakes):
        self.wakes, self.registered, self.reading = wakes, [], {}

    def register(self, item, *, reading, writing):
        self.registered.append(item)
        self.reading[item] = reading

    def unregister(self, item):
        """Nothing is kept."""

    def wait(self, until_s, sends=(), receives=()):
        return self.wakes.pop(0), []


class CoalescingData(DataChannel):
    """A channel whose arrivals coalesce until `until_s`; it notes how it is read."""

    def __init__(self, until_s):
        self.unread_until_s, self.read_waited = until_s, []

    def read(self, connection, now_s, *, waited):
        self.read_waited.append(waited)
        self.wake_up()


def driver_of(links, wakes):
    driver, waiter = Driver(lambda name, event: None), FakeWaiter(wakes)
    driver.links.update(links)
    driver._waiter = waiter
    return driver, waiter


@both
def test_what_came_while_the_application_was_busy_is_read_before_its_peer_is_given_up(protocol):
    place = site(protocol, peer_timeout_s=0.3)
    payload, buffer = random_payload(place.layout), place.layout.new_buffer()
    with joined(place, worker=place.worker(peer_timeout_s=5.0)) as (endpoint, server):
        handle = server.post_receive(0, 0, {"worker-1": buffer})
        assert server.poll() == []
        sent = in_thread(endpoint.send, 0, {"server": payload})
        time.sleep(0.6)
        handle.wait()
        sent.result(timeout=30)
    assert np.array_equal(buffer, payload)


def test_no_patience_ends_before_this_side_has_read():
    two = Two()
    two.receive(0)
    two.run(until_s=0.9 * TIMEOUT_S)
    now_s = 1.1 * TIMEOUT_S
    link = Link(two.server.connection, cast(Any, Stream()), whole_by_s=1.0)
    link.work(now_s, attentive=False)
    assert link.connection.lost is None
    assert cast(Stream, link.stream).expired_s is None
    assert link.due_s < now_s  # at once
    link.work(now_s)
    assert "no new chunk" in str(link.connection.lost)
    assert cast(Stream, link.stream).expired_s == now_s


@pytest.mark.parametrize("alive", [True, False])
def test_a_peer_that_lets_this_side_wait_is_asked_before_it_is_given_up(alive):
    two = Two()
    two.send(0)
    two.run(until_s=1.0)  # it was told to hold
    two.worker.be_busy(3 * TIMEOUT_S)
    if not alive:
        two.server.be_busy(1e6)
    two.run(until_s=4 * TIMEOUT_S)
    assert gone(two.worker) == ("" if alive else f"silent for {TIMEOUT_S:g} s")


def patient(connection):
    """Makes one side wait for as long as it takes."""
    settings = replace(connection._settings, peer_timeout_s=1e6)
    connection._settings = connection.incoming._settings = connection.outgoing._settings = settings


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
@pytest.mark.parametrize("away", ["worker", "server"])
@pytest.mark.parametrize("blocked", [False, True])
def test_an_absence_of_this_side_s_own_is_no_transfer_that_stands_still(repair, away, blocked):
    two = Two(repair=repair, chunks=1000)
    parties = {"worker": two.worker, "server": two.server}
    (other,) = (party for name, party in parties.items() if name != away)
    patient(other.connection)
    two.worker.fate = lambda frame: None
    two.begin(0)
    two.run(until_s=1.0)
    back_s = 4 * TIMEOUT_S
    parties[away].be_busy(back_s)
    two.run(until_s=back_s - 1e-3)
    if not blocked:
        two.worker.fate = None
    two.run(until_s=back_s + TIMEOUT_S)
    assert ("control works, data does not arrive" in gone(parties[away])) is blocked
    assert two.intact == ([] if blocked else [0])


def test_absences_do_not_add_up_to_endless_patience():
    two = Two()
    two.receive(0)
    for step in range(1, 5):
        assert gone(two.server) == ""
        two.server.be_busy(2 * step * TIMEOUT_S)
        two.run(until_s=2 * step * TIMEOUT_S)
    assert gone(two.server) == f"silent: no new chunk of transfer 0 for {TIMEOUT_S:g} s"


def test_a_peer_that_is_idle_costs_no_call():
    links = {name: CountingLink() for name in ("busy", "idle", "idle-too")}
    wakes = [[links["busy"].stream] for _ in range(5)]
    driver, waiter = driver_of(links, wakes)
    driver.run(lambda: not wakes)
    assert links["busy"].calls == ["work", *["take", "work"] * 5]
    assert links["idle"].calls == links["idle-too"].calls == ["work"]  # at the begin
    assert waiter.registered.count(links["idle"].stream) == 1


def test_a_peer_that_ends_while_its_arrivals_gather_is_forgotten():
    class StillCoalescing(CoalescingData):
        def wake_up(self):
            """Goes on coalescing."""

    links = {name: CountingLink() for name in ("other", "gone")}
    links["other"].due_s = 0.0  # of a clock that is far beyond
    links["gone"].data = StillCoalescing(0.0)
    wakes: list[list[Any]] = [[], []]
    driver, _ = driver_of(links, wakes)

    def end_one():
        if "gone" in driver.links and len(links["other"].calls) == 2:
            driver.end("gone")

    links["other"].then = end_one
    driver.run(lambda: not wakes)
    assert links["other"].calls == ["work"] * 3
    assert links["gone"].calls == ["work"]


def test_what_gathered_while_nobody_waited_is_no_longer_left_to_gather():
    link = CountingLink()
    link.data = CoalescingData(math.inf)
    wakes: list[list[Any]] = [[]]
    driver, waiter = driver_of({"peer": link}, wakes)
    driver.run(lambda: not wakes)
    assert waiter.reading[link.data]


def test_a_link_hands_over_what_has_gathered_as_having_waited():
    connection = Two().server.connection
    link = Link(connection, cast(Any, Stream()), CoalescingData(1.0))
    link.work(0.5)
    assert cast(CoalescingData, link.data).read_waited == []
    link.work(1.0)
    assert cast(CoalescingData, link.data).read_waited == [True]


@pytest.mark.parametrize("until_alarm", [False, True])
def test_an_alarm_that_nobody_clears_keeps_nobody_awake(until_alarm):
    driver, waiter = driver_of({}, [[]])
    driver.alarm.set()
    driver.run(lambda: not waiter.wakes, until_alarm=until_alarm)
    assert waiter.reading[driver.alarm] == until_alarm


def test_control_messages_that_are_due_go_before_data_and_what_data_cause_goes_behind():
    order: list[object] = []
    due = [b"worth"]

    class Data(CoalescingData):
        def write(self, connection, now_s):
            order.append("data")
            due.append(b"probe")

    stream = Stream()
    stream.write = order.append  # type: ignore[method-assign]
    connection = SimpleNamespace(
        control=lambda: due.pop(0) if due else b"",
        control_datagrams=lambda now_s: [],
        on_deadline=lambda now_s: None,
        next_deadline_s=lambda now_s, planned: None,
        lost=None,
    )
    Link(cast(Any, connection), cast(Any, stream), cast(Any, Data(-math.inf))).work(0.0)
    assert order == [b"worth", "data", b"probe"]
