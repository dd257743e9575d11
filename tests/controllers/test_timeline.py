"""The timeline: requests, anchors, the order of begins and ends, and what the runner skips."""

import time
from typing import Any, cast

import pytest

from controllers.framework import hub
from controllers.impairment_plan import Places
from controllers.impairment_runner import ImpairmentRunner
from controllers.impairments import Effect, Impairment
from controllers.impairments.loss import LossParameters
from controllers.timeline import ContradictionError, Timeline
from testbed.shared.jsonl import JsonLinesWriter
from tests.verdict.evidence_of_gates import gate_of

PLACES = Places(
    hosts=["server", "worker-1"], switches=["s1"], links=[("server", "s1"), ("worker-1", "s1")]
)


class Nothing(Impairment[Any]):
    def begin(self) -> None: ...

    def end(self) -> None: ...

    def effect(self) -> Effect:
        return Effect(met=1)


def impairment(**parameters: Any) -> Nothing:
    return Nothing(LossParameters(kind="loss", q=0.5, **parameters), cast(Any, None))


def begun(timeline: Timeline, round_number: int, leg: str, at_s: float = 0.0) -> list[str]:
    announced = timeline.announced(round_number, leg, at_s)
    return [occurrence.parameters.label for occurrence in announced if timeline.begin(occurrence)]


def test_both_legs_and_whole_rounds_are_anchors():
    timeline = Timeline(
        [
            impairment(rounds=[1], leg="both", name="legs"),
            impairment(rounds=[1], leg="round", name="whole", host="worker-1"),
        ],
        PLACES,
    )
    assert begun(timeline, 1, "round") == ["whole"]
    assert begun(timeline, 1, "gather") == ["legs"]
    for occurrence in timeline.ending_with(1, "gather"):
        timeline.ended(occurrence)
    assert timeline.active == ["whole"]
    assert begun(timeline, 1, "broadcast") == ["legs"]
    assert [due.parameters.label for due in timeline.ending_with(1, "round")] == ["whole"]


def test_times_count_from_the_first_round_and_only_once():
    timeline = Timeline([impairment(at_s=[3, 1.5], duration_s=0.1)], PLACES)
    assert [occurrence.begins_s for occurrence in timeline.start(1000.0)] == [1001.5, 1003.0]
    assert timeline.start(2000.0) == []


def test_another_entry_of_the_kind_cannot_hold_the_same_target():
    timeline = Timeline(
        [impairment(rounds=[1], name="first"), impairment(rounds=[2], name="second")], PLACES
    )
    begun(timeline, 1, "gather")
    with pytest.raises(
        ContradictionError, match=r"second \(loss\) begins while first \(loss\) holds"
    ):
        begun(timeline, 2, "gather")


def test_a_leg_is_told_all_that_hit_it_also_what_came_and_went():
    timeline = Timeline([impairment(at_s=[0.1], duration_s=0.1, name="short")], PLACES)
    (short,) = timeline.start(0.0)
    timeline.announced(0, "gather", 0.0)
    timeline.begin(short)
    timeline.ended(short)
    assert timeline.hit(0, "gather") == ["short"]
    timeline.announced(0, "broadcast", 1.0)
    assert timeline.hit(0, "broadcast") == []


ENTRY: dict[str, Any] = {"kind": "loss", "name": "loss", "q": 0.5}


class Log(list[dict[str, Any]]):
    write = list.append


def of_rounds(**entry: Any) -> tuple[list[tuple[Any, ...]], Any]:
    """It returns the events of three rounds of 30 ms, and the gate of lateness."""
    log, parameters = Log(), LossParameters(**ENTRY, **entry)
    timeline = Timeline([Nothing(parameters, cast(Any, None))], PLACES)
    runner = ImpairmentRunner(timeline, cast(JsonLinesWriter, log))

    def rounds() -> None:
        for number in range(3):
            runner.leg_begins(number, "gather", time.monotonic())
            hub.sleep(0.03)
            runner.leg_ends(number, "gather", time.monotonic())
        runner.finish(time.monotonic())

    hub.joinall([hub.spawn(rounds)])
    # That a busy machine is late is not what this is about.
    planned = [ENTRY | {"leg": "gather"} | entry]
    key = "impairment_late_s"
    gate = gate_of(key, limits={key: 60}, events=log, impairments=planned)
    return [(event["action"], event["round"], event["details"]) for event in log], gate


def test_what_is_due_while_the_one_before_is_in_force_is_missing():
    records, gate = of_rounds(rounds=[0, 1, 2], duration_s=60)
    still = {"still_in_force": True}
    assert records == [
        ("begin", 0, {}),
        ("skipped", 1, still),
        ("skipped", 2, still),
        ("end", 0, {}),
    ]
    assert (gate.outcome, gate.stops, gate.repeats) == ("not measured", True, True)
    assert "2 of 3 occurrences of loss did not begin" in gate.note


def test_what_is_due_after_its_leg_is_over_is_in_order():
    records, gate = of_rounds(rounds=[0, 1], offset_s=0.04)
    assert {(action, *details) for action, _, details in records} == {("skipped",)}
    assert "no occurrence of loss began" in gate.note
    assert "still in force" not in gate.note
    assert not gate.repeats
