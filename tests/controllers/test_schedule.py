"""The controller's bookkeeping: requests, the timeline's order, shortest paths."""

from typing import Any, cast

import pytest

from controllers.forwarding import next_hops
from controllers.impairments import Impairment
from controllers.impairments.loss import LossParameters
from controllers.messages import parse_request
from controllers.timeline import Timeline
from testbed.lab.network import HostInfo

HOST = HostInfo(
    name="server",
    address="10.0.0.1",
    mac="00:00:00:00:00:01",
    pid=1,
    interface="server-eth0",
    switch="s1",
    switch_port=1,
    switch_interface="s1-eth1",
    rate_bps=100_000_000,
    queue_bytes=150_000,
)


class Nothing(Impairment[Any]):
    """An impairment that does nothing, for the order of events."""

    def duration_s(self) -> float:
        return 1.0

    def begin(self) -> None: ...

    def end(self) -> None: ...


class Lasting(Nothing):
    ends_with_leg = False


def impairment(kind: type[Nothing] = Nothing, **parameters: Any) -> Nothing:
    return kind(LossParameters(kind="loss", q=0.5, **parameters), HOST, cast(Any, None))


def test_an_impairment_starts_in_its_rounds_and_legs_only():
    one = impairment(rounds=[3, 5], leg="gather")
    timeline = Timeline([one])
    assert timeline.starting(2, "gather") == []
    assert timeline.starting(3, "broadcast") == []
    assert timeline.starting(3, "gather") == [one]
    assert timeline.active == ["loss-server"]


def test_an_impairment_in_force_is_not_started_twice_and_ends_once():
    one = impairment(rounds=[3, 4])
    timeline = Timeline([one])
    timeline.starting(3, "gather")
    assert timeline.starting(4, "gather") == []
    assert timeline.ended(one) is True
    assert timeline.ended(one) is False
    assert timeline.starting(4, "gather") == [one]


def test_only_impairments_that_follow_the_leg_end_with_it():
    short, long = impairment(rounds=[1]), impairment(Lasting, rounds=[1], name="long")
    timeline = Timeline([short, long])
    assert timeline.starting(1, "gather") == [short, long]
    assert timeline.ending_with_leg() == [short]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x\n",
        b"[]\n",
        b'{"do": "shutdown"}',
        b'{"do": "begin"}',
        b'{"do": "begin", "round": -1, "leg": "gather"}',
        b'{"do": "begin", "round": true, "leg": "gather"}',
        b'{"do": "end", "round": 1, "leg": "sideways"}',
        b"\xff\xfe",
    ],
)
def test_a_request_that_is_not_understood_is_refused(line):
    with pytest.raises(ValueError, match=r"JSON|must be"):
        parse_request(line)


def test_a_good_request_is_read():
    request = {"do": "begin", "round": 3, "leg": "gather"}
    assert parse_request(b'{"do": "begin", "round": 3, "leg": "gather"}\n') == request


def test_forwarding_takes_the_shortest_path():
    def link(first: tuple[str, int], second: tuple[str, int]) -> dict[str, Any]:
        ends = [{"node": node, "number": number} for node, number in (first, second)]
        return {"first": ends[0], "second": ends[1]}

    network = {
        "switches": {"s1": 1, "s2": 2, "s3": 3},
        "hosts": {"a": {"mac": "aa"}, "b": {"mac": "bb"}},
        "links": [
            link(("a", 0), ("s1", 1)),
            link(("b", 0), ("s3", 1)),
            link(("s1", 2), ("s2", 1)),
            link(("s2", 2), ("s3", 2)),
            link(("s1", 3), ("s3", 3)),
        ],
    }
    table = next_hops(network)
    assert table["s1"] == [("aa", 1), ("bb", 3)]
    assert table["s2"][0][1] == 1
    assert table["s3"] == [("aa", 3), ("bb", 1)]
