"""The controller's bookkeeping: requests, anchors, and the order of begins and ends."""

from typing import Any, cast

import pytest

from controllers.controller_socket import parse_request
from controllers.impairments import Impairment
from controllers.impairments.loss import LossParameters
from controllers.timeline import ContradictionError, Timeline


class Nothing(Impairment[Any]):
    """An impairment that does nothing, for the order of events."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


def impairment(**parameters: Any) -> Nothing:
    return Nothing(LossParameters(kind="loss", q=0.5, **parameters), cast(Any, None))


def begun(timeline: Timeline, round_number: int, leg: str, at_s: float = 0.0) -> list[str]:
    """Labels of what a leg's begin brings into force."""
    found = timeline.announced(round_number, leg, at_s)
    return [each.parameters.label for each in found if timeline.begin(each)]


def test_an_impairment_starts_in_its_rounds_and_legs_only_and_not_twice():
    timeline = Timeline([impairment(rounds=[3, 4], leg="gather", duration_s=9)])
    assert begun(timeline, 2, "gather") == []
    assert begun(timeline, 3, "broadcast") == []
    assert begun(timeline, 3, "gather") == ["loss-server"]
    assert begun(timeline, 4, "gather") == []
    assert timeline.active == ["loss-server"]


def test_both_legs_and_whole_rounds_are_anchors():
    timeline = Timeline(
        [
            impairment(rounds=[1], leg="both", name="legs"),
            impairment(rounds=[1], leg="round", name="whole", host="worker-1"),
        ]
    )
    assert begun(timeline, 1, "round") == ["whole"]
    assert begun(timeline, 1, "gather") == ["legs"]
    for each in timeline.ending_with(1, "gather"):
        timeline.ended(each)
    assert timeline.active == ["whole"]
    assert begun(timeline, 1, "broadcast") == ["legs"]
    assert [each.parameters.label for each in timeline.ending_with(1, "round")] == ["whole"]


def test_what_has_not_begun_when_its_leg_ends_never_does():
    timeline = Timeline([impairment(rounds=[1], offset_s=0.25)])
    (found,) = timeline.announced(1, "gather", 100.0)
    assert (found.begins_s, found.parameters.longest_s, found.with_leg) == (100.25, 2.0, True)
    assert timeline.ending_with(1, "gather") == []
    assert timeline.begin(found) is False
    assert timeline.active == []


def test_what_has_a_duration_outlives_its_leg():
    timeline = Timeline([impairment(rounds=[1], duration_s=5)])
    begun(timeline, 1, "gather")
    assert timeline.ending_with(1, "gather") == []
    assert [each.parameters.label for each in timeline.finish()] == ["loss-server"]


def test_times_count_from_the_first_round_and_only_once():
    timeline = Timeline([impairment(at_s=[3, 1.5], duration_s=0.1)])
    assert [each.begins_s for each in timeline.start(1000.0)] == [1001.5, 1003.0]
    assert timeline.start(2000.0) == []


def test_another_entry_of_the_kind_cannot_hold_the_same_target():
    timeline = Timeline(
        [impairment(rounds=[1], name="first"), impairment(rounds=[2], name="second")]
    )
    begun(timeline, 1, "gather")
    with pytest.raises(ContradictionError, match="second begins while first holds server"):
        begun(timeline, 2, "gather")


def test_a_leg_is_told_all_that_hit_it_also_what_came_and_went():
    timeline = Timeline([impairment(at_s=[0.1], duration_s=0.1, name="short")])
    (short,) = timeline.start(0.0)
    timeline.announced(0, "gather", 0.0)
    timeline.begin(short)
    timeline.ended(short)
    assert timeline.hit(0, "gather") == ["short"]
    timeline.announced(0, "broadcast", 1.0)
    assert timeline.hit(0, "broadcast") == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x\n",
        b"[]\n",
        b'{"do": "shutdown"}',
        b'{"do": "begin"}',
        b'{"do": "begin", "round": true, "leg": "gather"}',
        b'{"do": "end", "round": 1, "leg": "sideways"}',
        b'{"do": "begin", "round": 1, "leg": "gather", "at_s": "now"}',
    ],
)
def test_a_request_that_is_not_understood_is_refused(line):
    with pytest.raises(ValueError, match=r"JSON|must be"):
        parse_request(line)


def test_a_good_request_is_read():
    request = {"do": "begin", "round": 3, "leg": "gather"}
    assert parse_request(b'{"do": "begin", "round": 3, "leg": "gather"}\n') == request
