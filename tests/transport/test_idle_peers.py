"""Peers that cost their driver nothing while they are idle, or while their datagrams gather."""

import math
from typing import Any, cast

import pytest

from testbed.transport.net.link import Link
from tests.transport.driver_parts import CountingLink, RestingData, Stream, driver_of
from tests.transport.two_parties import Two


def test_a_peer_that_is_idle_costs_no_call():
    links = {name: CountingLink() for name in ("busy", "idle", "idle-too")}
    wakes = [[links["busy"].stream] for _ in range(5)]
    driver, waiter = driver_of(links, wakes)
    driver.run(lambda: not wakes)
    assert links["busy"].calls == ["work", *["take", "work"] * 5]
    assert links["idle"].calls == links["idle-too"].calls == ["work"]  # at the begin
    assert waiter.wanted.count(links["idle"].stream) == 1


def test_a_peer_that_ends_while_its_arrivals_gather_is_forgotten():
    class Resting(RestingData):
        def rouse(self):
            """Goes on resting."""

    links = {name: CountingLink() for name in ("other", "gone")}
    links["other"].due_s = 0.0  # of a clock that is far beyond
    links["gone"].data = Resting(0.0)
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
    link.data = RestingData(math.inf)
    wakes: list[list[Any]] = [[]]
    driver, waiter = driver_of({"peer": link}, wakes)
    driver.run(lambda: not wakes)
    assert waiter.reading[link.data]


def test_a_link_hands_over_what_has_gathered_as_having_waited():
    connection = Two().server.connection
    link = Link(connection, cast(Any, Stream()), RestingData(1.0))
    link.work(0.5)
    assert cast(RestingData, link.data).read_waited == []
    link.work(1.0)
    assert cast(RestingData, link.data).read_waited == [True]


@pytest.mark.parametrize("heeding", [False, True])
def test_an_alarm_that_nobody_hushes_keeps_nobody_awake(heeding):
    driver, waiter = driver_of({}, [[]])
    driver.alarm.ring()
    driver.run(lambda: not waiter.wakes, heeding=heeding)
    assert waiter.reading[driver.alarm] == heeding
