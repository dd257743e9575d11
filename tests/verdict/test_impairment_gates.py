"""The gates of impairments: on time, all met something, and no more lost than chance explains."""

import dataclasses
import json
import random
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed.lab.loss_table import LossModel
from testbed.verdict.conservation import Conservation
from testbed.verdict.flows import wrong_congestion_control
from testbed.verdict.gates import DEFAULTS
from testbed.verdict.impairment_gates import explained_by_chance
from testbed.verdict.link_changes import LinkChanges
from tests.verdict.evidence_of_gates import LINK, conserved, gate_of, ledger, network_of

# How many losses chance explains

BERNOULLI = LossModel(loss_good=0.1)
MODELS = {
    "rare": LossModel(loss_good=0.002),
    "a tenth": BERNOULLI,
    "nearly all": LossModel(loss_good=0.98),
    "runs": LossModel(p_good_to_bad=0.02, p_bad_to_good=0.2, loss_bad=0.9),
    "long runs": LossModel(p_good_to_bad=0.002, p_bad_to_good=0.01),
    "rare runs": LossModel(p_good_to_bad=0.0001, p_bad_to_good=0.1),
    "rarer runs": LossModel(p_good_to_bad=1e-5, p_bad_to_good=0.25),
    "for ever": LossModel(p_good_to_bad=0.001, p_bad_to_good=0.0),
    "both states": LossModel(p_good_to_bad=0.3, p_bad_to_good=0.9, loss_good=0.6, loss_bad=0.1),
}
any_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def channel(model: LossModel, seed: int) -> Iterable[bool]:
    draw, bad = random.Random(seed), False
    while True:
        yield draw.random() < (model.loss_bad if bad else model.loss_good)
        if draw.random() < (model.p_bad_to_good if bad else model.p_good_to_bad):
            bad = not bad


def distribution(model: LossModel, met: list[int]) -> np.ndarray:
    """The exact probabilities of 0, 1, 2, ... losses in occurrences of so many packets."""
    total = np.ones(1)
    change = np.array(
        [
            [1 - model.p_good_to_bad, model.p_good_to_bad],
            [model.p_bad_to_good, 1 - model.p_bad_to_good],
        ]
    )
    for packets in met:
        states = np.zeros((2, packets + 1))
        states[0, 0] = 1
        for _ in range(packets):
            after = np.zeros_like(states)
            for state, loss in enumerate((model.loss_good, model.loss_bad)):
                after[state] += (1 - loss) * states[state]
                after[state, 1:] += loss * states[state, :-1]
            states = change.T @ after
        total = np.convolve(total, states.sum(axis=0))
    return total


@any_model
@pytest.mark.parametrize("met", [[1], [40], [1500], [7, 300, 90]], ids=str)
def test_a_faithful_channel_is_refused_once_in_a_million(model, met):
    """It uses the exact distribution. The gate compares with the mean of that one as well."""
    exact = distribution(model, met)
    losses = np.arange(len(exact))
    assert sum(map(model.expected_losses, met)) == pytest.approx(float(exact @ losses), rel=1e-9)
    fewest, most = explained_by_chance(model, met, 1e-6)
    assert fewest <= exact @ losses <= most
    assert exact[(losses < fewest) | (losses > most)].sum() <= 1e-6


probabilities = st.one_of(
    st.sampled_from([0.0, 1.0]), st.floats(0, 1), st.floats(-7, 0).map(lambda power: 10**power)
)


def runs(p_good_to_bad: float, p_bad_to_good: float) -> LossModel:
    return LossModel(p_good_to_bad=p_good_to_bad, p_bad_to_good=p_bad_to_good)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        LossModel,
        loss_good=probabilities,
        loss_bad=probabilities,
        p_good_to_bad=probabilities,
        p_bad_to_good=probabilities,
    )
)
@example(runs(0.0001, 0.1))
@example(runs(0.0005, 0.01))
@example(runs(1e-5, 0.25))
@example(runs(0.001, 0.001))
@example(LossModel(loss_good=1.0, p_good_to_bad=1e-5, p_bad_to_good=0.25))
@example(LossModel(loss_good=1.0, loss_bad=0.0, p_good_to_bad=5e-324))
def test_so_it_is_with_any_model(model):
    met = [3, 30]
    exact, losses = distribution(model, met), np.arange(sum(met) + 1)
    fewest, most = explained_by_chance(model, met, 1e-6)
    assert exact[(losses < fewest - 1e-9) | (losses > most + 1e-9)].sum() <= 1.001e-6


@any_model
def test_and_no_more_often_than_promised_by_whoever_may_stop_when_it_looks_worst(model):
    """500 channels, each looked at after every packet: the bound of one in ten holds for all looks
    together."""
    packets, runs = 1500, 500
    bounds = np.array([explained_by_chance(model, [n], 0.1) for n in range(1, packets + 1)])
    refused = 0
    for seed in range(runs):
        flags = [flag for flag, _ in zip(channel(model, seed), range(packets), strict=False)]
        lost = np.cumsum(flags)
        refused += bool(((lost < bounds[:, 0]) | (lost > bounds[:, 1])).any())
    assert refused <= 0.1 * runs


def test_the_resolution_is_near_that_of_a_test_that_knows_the_number_of_packets():
    """A normal approximation refuses beyond 4.9 standard deviations once in a million."""
    for packets in (1000, 100_000, 10_000_000):
        fewest, most = explained_by_chance(BERNOULLI, [packets], 1e-6)
        sigma = (packets * 0.09) ** 0.5
        assert 5.5 < (most - packets / 10) / sigma < 6.6
        assert 5.3 < (packets / 10 - fewest) / sigma < 6.3


# The gates of losses, and of those that met nothing


def ended(name: str, met: int | None, dropped: int | None, **changes: Any) -> dict[str, Any]:
    facts = {"kind": "loss", "counts_as": "loss", "action": "end", "round": 3, "leg": "gather"}
    return {**facts, "name": name, "met": met, "dropped": dropped, **changes}


def ledgers(*, sent: int, lost: int, sender: str = "s1", **changes: Any) -> Conservation:
    return conserved(ledger(sender=sender, sent=sent, delay_lost=lost, **changes))


def judged(
    *events: dict[str, Any],
    link_loss: float = 0.0,
    conservation: Conservation | None = None,
    changed: Collection[tuple[str, str]] = (),
    entries: Collection[dict[str, Any]] = (),
) -> Any:
    loss = {"kind": "loss", "host": "server", "rounds": [3], "q": 0.1}
    return gate_of(
        "loss_error",
        network=network_of(dataclasses.replace(LINK, loss=link_loss)),
        events=events,
        ledgers=conservation,
        changes=LinkChanges(
            [
                {"link": name, "from": sender, "set": ["loss"], "loss": 0.5, "acknowledged_s": 1.0}
                for name, sender in changed
            ]
        ),
        impairments=[loss | {"name": "one"}, loss | {"name": "other"}, *entries],
    )


def test_the_worst_impairment_is_named_with_what_could_have_been_seen():
    gate = judged(ended("one", 40_000, 4100), ended("other", 40_000, 4800))
    assert (gate.outcome, gate.where) == ("failed", "other")
    assert gate.value == pytest.approx(0.02)
    assert "lost 4800 of 40000 packets, expected 4000.0" in gate.note
    assert judged(ended("one", 40_000, 4100), ended("other", 40_000, 3900)).outcome == "passed"
    few = judged(ended("one", 40_000, 4100), ended("other", 20, 2))
    assert few.outcome == "passed"
    assert "(other: 20 packets)" in few.note


def test_many_tests_together_raise_no_more_false_alarms_than_one():
    alone = judged(ended("one", 40_000, 4800))
    beside = judged(ended("one", 40_000, 4800), ended("other", 40_000, 4000))
    allowed, chance = DEFAULTS["loss_error"], explained_by_chance(BERNOULLI, [40_000], 1e-6)[1]
    assert alone.limit == pytest.approx(allowed + chance / 40_000 - 0.1)
    half = explained_by_chance(BERNOULLI, [40_000], 0.5e-6)[1]
    assert beside.limit == pytest.approx(allowed + half / 40_000 - 0.1)
    assert beside.limit > alone.limit


def test_one_long_occurrence_is_not_hidden_by_the_others():
    even = [ended("one", 20_000, 2000, round=number) for number in range(9)]
    assert judged(*even, ended("one", 20_000, 1990, round=9)).outcome == "passed"
    gate = judged(*even, ended("one", 20_000, 2600, round=9))
    assert (gate.outcome, gate.where) == ("failed", "one round 9 gather")


def test_a_table_s_losses_are_exact():
    def by_table(name: str, dropped: int, planned: int, **changes: Any) -> dict[str, Any]:
        return ended(name, 400, dropped, details={"planned": planned}, **changes)

    assert judged(by_table("one", 41, 41), by_table("other", 0, 0)).outcome == "passed"
    # Few packets, too few for any test of chance; and losses that make up for each other.
    odd = [by_table("one", 41, 40, round=3), by_table("one", 39, 40, round=4)]
    gate = judged(*odd, ended("other", 40_000, 4000))
    assert (gate.outcome, gate.where) == ("failed", "one round 3 gather")
    assert gate.value == pytest.approx(1 / 400)
    assert judged(by_table("one", 0, 1)).outcome == "failed"


def test_a_link_s_own_loss_is_compared_in_each_direction():
    lossy: Any = {"link_loss": 0.05}
    assert judged(**lossy, conservation=ledgers(sent=50_000, lost=2500)).outcome == "passed"
    gate = judged(**lossy, conservation=ledgers(sent=50_000, lost=3000))
    assert (gate.outcome, gate.where) == ("failed", "server--s1 from s1")
    # What came too late for the relay was not lost by chance, but had no chance either.
    full = ledgers(sent=100_000, lost=2500, delay_drops=50_000)
    assert judged(**lossy, conservation=full).outcome == "passed"
    assert judged(**lossy, conservation=None).outcome == "not measured"
    own = ended("mine", None, None, kind="./mine.py", counts_as="")
    excused = judged(own, **lossy, conservation=ledgers(sent=50_000, lost=3000))
    assert excused.outcome == "not applicable"
    assert "./mine.py may have changed it" in excused.note


SENDER_DROP = {"kind": "sender-drop", "counts_as": "sender-drop"}
MUCH_LOST = ended("other", 40_000, 4800)


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([], "not applicable"),
        ([ended("one", 40_000, 4000, **SENDER_DROP)], "passed"),  # tested as random loss is
        ([MUCH_LOST | SENDER_DROP], "failed"),
        ([ended("one", None, 10)], "not measured"),  # it does not say what it met
        ([ended("one", None, 10), MUCH_LOST], "failed"),
    ],
)
def test_what_counts_as_loss_is_compared_as_far_as_it_says_what_it_met(events, outcome):
    assert judged(*events).outcome == outcome


def test_an_impairment_that_met_nothing_is_named_and_a_pause_is_told():
    gate = gate_of("impairments_unmet", events=[])
    assert gate.outcome == "not applicable"
    crash = ended("crash", None, None, kind="crash", counts_as="crash")
    gate = gate_of("impairments_unmet", events=[crash])
    assert gate.outcome == "not applicable"
    assert "not known of crash" in gate.note
    own = ended("mine", None, None, kind="./mine.py", counts_as="")
    met = [ended("one", 5, 0), ended("one", 0, 0), crash, own, own]
    gate = gate_of("impairments_unmet", events=met)
    assert (gate.outcome, gate.value) == ("passed", 0)
    pause, untold = gate.note.split("; ")
    assert pause == "1 of 2 occurrences of one met nothing"
    assert untold == "not known of ./mine.py, crash, which count nothing"
    gate = gate_of("impairments_unmet", events=[*met, ended("other", 0, 0)])
    assert (gate.outcome, gate.value, gate.where) == ("failed", 1, "other")
    assert gate.repeats


def test_a_burst_that_lacks_frames_is_named():
    burst = {"kind": "burst", "counts_as": "burst"}
    weak, whole, early = (
        ended(name, sent, 0, **burst, frames_sent=sent, details={"frames_due": due})
        for name, sent, due in [("weak", 1900, 2000), ("whole", 2000, 2000), ("early", 99, 40)]
    )
    gate = gate_of("burst_missing", events=[ended("no-burst", 5, 5)])
    assert gate.outcome == "not applicable"
    gate = gate_of("burst_missing", events=[whole, early])
    assert (gate.outcome, gate.value) == ("passed", 0)
    gate = gate_of("burst_missing", events=[whole, weak, early])
    assert (gate.outcome, gate.where) == ("failed", "weak round 3 gather")
    assert gate.value == pytest.approx(0.05)


AT_LINK = {"name": "it", "link": ["s1", "server"], "rounds": [3]}
TRACE = {**AT_LINK, "kind": "trace", "length_s": 1}


@pytest.mark.parametrize(
    ("options", "outcome", "words"),
    [
        ({"entries": [TRACE | {"changes": {"t_s": [0], "loss": [0.5]}}]}, "not applicable", ""),
        ({"entries": [TRACE | {"changes": {"t_s": [0], "delay_s": [0.5]}}]}, "failed", ""),
        ({"entries": [AT_LINK | {"kind": "delay", "delay_s": 0.5}]}, "failed", ""),
        (
            {"changed": {("server--s1", "s1")}},
            "not applicable",
            "set by hand, so not compared: server--s1 from s1",
        ),
        ({"changed": {("server--s1", "server")}}, "failed", ""),  # the other direction
    ],
)
def test_whatever_may_have_changed_a_link_s_loss_alone_excuses_it(options, outcome, words):
    gate = judged(link_loss=0.05, conservation=ledgers(sent=50_000, lost=3000), **options)
    assert gate.outcome == outcome
    assert words in gate.note


# The gate of impairments that are late, or never come

IMPAIRMENTS = [{"name": "loss", "rounds": [3, 7], "leg": "both"}, {"name": "cut", "at_s": [2.0]}]


def occurrence(name, number, *late_s, actions=("begin", "end"), **details):
    return [
        {"name": name, "action": action, "round": number, "planned_s": 5.0}
        | {"acknowledged_s": 5.0 + late, "details": details}
        for action, late in zip(actions, late_s or (0.001, 0.002), strict=True)
    ]


def times(*last, losses=3):
    """The events of three occurrences of `loss` and one of `cut`, and those of the last one."""
    events = [event for _ in range(losses) for event in occurrence("loss", 3)]
    return [*events, *occurrence("cut", -1), *(last or occurrence("loss", 7))]


def lateness(events):
    return gate_of("impairment_late_s", events=events, impairments=IMPAIRMENTS)


@pytest.mark.parametrize("late_s", [(0.02, 0.001), (0.001, 0.02)])
def test_the_latest_impairment_counts_however_many_there_are(late_s):
    assert lateness(times(*occurrence("loss", 7, 0.009, 0.001))).outcome == "passed"
    gate = lateness(times(*occurrence("loss", 7, *late_s), losses=400))
    assert (gate.outcome, gate.value) == ("failed", pytest.approx(0.02))
    assert "of loss in round 7" in gate.where


def test_an_occurrence_that_was_due_before_it_was_skipped_was_late():
    early = occurrence("loss", 7, -0.3, actions=("skipped",))
    assert lateness(times(*early)).outcome == "passed"
    assert "1 of loss skipped, since their leg" in lateness(times(*early)).note
    cancelled = lateness(times(*occurrence("loss", 7, 0.0003, actions=("skipped",))))
    assert "1 of loss skipped, since their leg" in cancelled.note  # noted when it was due
    assert lateness(times(*occurrence("loss", 7, 0.3, actions=("skipped",)))).outcome == "failed"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (times(losses=2), "1 of 4 occurrences of loss neither began nor were skipped"),
        (times()[:-1], "1 of 4 occurrences of loss did not end"),
        (occurrence("cut", -1), "no occurrence of loss began"),
        (
            times(*occurrence("loss", 7, 0.0003, actions=("skipped",), still_in_force=True)),
            "1 of 4 occurrences of loss did not begin, since the one before was still in force",
        ),
        ([], "no occurrence of cut began"),
        (
            [*occurrence("cut", -1), *occurrence("loss", 3, -1, actions=("skipped",)) * 4],
            "no occurrence of loss began",
        ),
    ],
)
def test_an_impairment_that_never_began_or_ended_is_found(events, words):
    gate = lateness(events)
    assert (gate.outcome, gate.stops) == ("not measured", True)
    assert words in gate.note


def endpoint(directory: Path, host: str, facts: Mapping[str, Mapping[str, object]]) -> None:
    (directory / "events").mkdir(exist_ok=True)
    record = {"schema": 1, "host": host, "facts": facts, "ignored": {}}
    (directory / "events" / f"endpoint-{host}.jsonl").write_text(json.dumps(record) + "\n")


def test_what_differs_from_what_was_asked_for_is_named_with_its_place(tmp_path):
    assert wrong_congestion_control(tmp_path, "bbr") == ""  # nobody says anything
    endpoint(tmp_path, "server", {"worker-1": {"congestion_control": "bbr"}, "worker-2": {}})
    assert wrong_congestion_control(tmp_path, "bbr") == ""
    peers = {f"worker-{rank}": {"congestion_control": "cubic"} for rank in (1, 2)}
    endpoint(tmp_path, "server", peers)
    assert wrong_congestion_control(tmp_path, "bbr") == (
        "congestion control 'bbr' was asked for, and server towards worker-1 used 'cubic', "
        "and 1 more"
    )
