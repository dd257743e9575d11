"""The runner begins what is due, and says of what it skips why."""

from __future__ import annotations

import time
from typing import Any, cast

from controllers.framework import hub
from controllers.impairment_runner import ImpairmentRunner
from controllers.impairments import Effect, Impairment
from controllers.impairments.loss import LossParameters
from controllers.timeline import Timeline
from testbed.experiment import Limits
from testbed.shared.jsonl import JsonLinesWriter
from testbed.verdict import impairment_gates

ENTRY: dict[str, Any] = {"kind": "loss", "name": "loss", "q": 0.5}


class Harmless(Impairment[Any]):
    """Changes nothing, and met a packet."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def effect(self) -> Effect:
        return Effect(met=1)


class Log(list[dict[str, Any]]):
    """The records that the runner writes."""

    write = list.append


def of_rounds(**entry: Any) -> tuple[list[tuple[Any, ...]], Any]:
    """What happens in three rounds of 30 ms, and the gate of lateness."""
    log, parameters = Log(), LossParameters(**ENTRY, **entry)
    timeline = Timeline([Harmless(parameters, cast(Any, None))])
    runner = ImpairmentRunner(timeline, cast(JsonLinesWriter, log))

    def rounds() -> None:
        for number in range(3):
            runner.leg_begins(number, "gather", time.monotonic())
            hub.sleep(0.03)
            runner.leg_ends(number, "gather", time.monotonic())
        runner.finish(time.monotonic())

    hub.joinall([hub.spawn(rounds)])
    # That a busy machine is late is not what this is about.
    limits = Limits().model_dump() | {"impairment_late_s": 60}
    config = {"limits": limits, "impairments": [ENTRY | {"leg": "gather"} | entry]}
    gate = impairment_gates.lateness(log, config)
    return [(each["action"], each["round"], each["details"]) for each in log], gate


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
