"""Tolerance policies and their stop rules."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport import Fixed, PayloadLayout, Phased, as_policy
from testbed.transport.tolerance import (
    EarlyClose,
    PerLayer,
    QuickLossOnly,
    required_chunks,
)
from tests.transport.virtual import Network, layout_of, progress, random_payload, transfer, unpaced


@pytest.mark.parametrize(
    ("chunks", "tolerance", "required"),
    [(1000, 0.1 + 0.2, 700), (10, 1 - 0.2, 2), (10, 0.99999999999, 1)],
)
def test_required_chunks_round_up_without_float_fuzz(chunks, tolerance, required):
    assert required_chunks(chunks, tolerance) == required


@given(st.integers(1, 100_000), st.integers(0, 9999))
def test_never_more_than_the_tolerance_is_given_up_and_never_less_than_possible(chunks, tenths):
    required = required_chunks(chunks, tenths / 10000)
    given_up = chunks - required
    assert Fraction(given_up, chunks) <= Fraction(tenths, 10000)
    assert Fraction(given_up + 1, chunks) > Fraction(tenths, 10000) or required == 1


@pytest.mark.parametrize("value", [-0.01, 1, 1.5, float("nan"), float("inf"), "0.5", None])
def test_tolerances_outside_zero_to_one_are_refused(value):
    for refusing in (Fixed, lambda tolerance: required_chunks(10, tolerance)):
        with pytest.raises(ValueError, match="valid: 0"):
            refusing(value)


# Chunks of 4 elements: 0 a | 1 a,b | 2,3 b | 4 b,c.
TENSORS = PayloadLayout([("x.a", 6), ("x.b", 11), ("y.c", 3)], 16)


def but(*missing, chunks=5):
    return [chunk not in missing for chunk in range(chunks)]


# Per layer.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.1, 0.1]),
        ({"first": 0.3}, [0.3, 0.3, 0.1]),
        ({"last": 0.0}, [0.1, 0.1, 0.0]),
        ({"tensors": {"x.*": 0.4, "*.b": 0.2}}, [0.4, 0.2, 0.1]),
        ({"tensors": "*.b@0.2;x.*@0.4", "first": 0.3}, [0.3, 0.2, 0.1]),
    ],
)
def test_exceptions_replace_the_default_and_the_strictest_of_several_holds(options, expected):
    assert PerLayer(0.1, **options).bounds(TENSORS) == expected


@pytest.mark.parametrize(
    ("missing", "sufficient"),
    [
        ((), True),
        ((0,), True),  # 4 of a's 6 may be missing
        ((1,), True),  # 2 of a, 2 of b
        ((0, 1), False),  # all of a
        ((2,), True),
        ((1, 2), True),  # 2 of a, 6 of b
        ((2, 3), False),  # 8 of b's 11, of which 6 may be missing
        ((4,), False),  # c must arrive, and chunk 4 carries it
    ],
)
def test_a_chunk_that_spans_tensors_obeys_the_strictest(missing, sufficient):
    policy = PerLayer(0.6, tensors={"x.a": 0.7, "y.c": 0})
    rule = policy.stop_rule(critical=False)(TENSORS)
    assert rule.satisfied(progress(but(*missing))) is sufficient


@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    bounds=st.lists(st.integers(0, 99), min_size=6, max_size=6),
    seed=st.integers(0, 1000),
)
def test_no_tensor_ever_loses_more_than_its_bound(counts, bounds, seed):
    layout = PayloadLayout([(f"t{i}", n) for i, n in enumerate([*counts, 1])], 16)
    percent = dict(zip([name for name, _ in layout.tensors], bounds, strict=False))
    named = {name: bound / 100 for name, bound in percent.items()}
    rule = PerLayer(0.5, tensors=named).stop_rule(critical=True)(layout)
    generator = np.random.default_rng(seed)
    received = np.zeros(layout.chunk_count, dtype=np.bool_)
    least = 0  # how many are there at least when the transfer ends
    for chunk in generator.permutation(layout.chunk_count):
        stopped = rule.satisfied(progress(received))
        assert not stopped or received.sum() >= least
        least = max(least, received.sum() + rule.missing(progress(received)))
        missing = ~layout.element_mask(received)
        at = 0
        within = True
        for name, count in layout.tensors:
            within = within and 100 * int(missing[at : at + count].sum()) <= percent[name] * count
            at += count
        # Nothing is waited for in vain, but one chunk at least is always wanted.
        assert stopped == (within and received.any())
        received[chunk] = True
    assert rule.satisfied(progress(received))


def test_a_bound_for_a_tensor_that_does_not_exist_is_answered_with_the_names():
    policy = PerLayer(0.1, tensors={"z.*": 0.2})
    with pytest.raises(ValueError, match=r"no tensor is called 'z.\*'; there are x.a, x.b, y.c"):
        policy.stop_rule(critical=False)(TENSORS)


# Early close.


@pytest.mark.parametrize(
    ("missing", "now_s", "must", "answer"),
    [
        ((3, 4), 2.0999, "", (False, 2.1)),  # before the deadline the fraction is not enough
        ((3, 4), 2.1, "", (True, None)),
        ((2, 3, 4), 9.0, "", (False, None)),  # after it the fraction is still needed
        ((4,), 9.0, "y.*", (False, None)),  # what must be delivered is waited for
        ((0, 3), 9.0, "y.*", (True, None)),
    ],
)
def test_from_the_deadline_on_the_fraction_and_what_must_arrive_are_enough(
    missing, now_s, must, answer
):
    rule = EarlyClose(0.4, 0.1, must=must).stop_rule(critical=False)(TENSORS)
    state = progress(but(*missing), now_s=now_s, first_s=2.0)
    assert (rule.satisfied(state), rule.deadline_s(state)) == answer


def test_the_deadline_counts_from_the_first_chunk():
    rule = EarlyClose(0.4, 0.1).stop_rule(critical=False)(TENSORS)
    nothing = progress(but(0, 1, 2, 3, 4), now_s=50.0, first_s=None, last_s=None)
    assert not rule.satisfied(nothing)
    assert rule.deadline_s(nothing) is None


# Quick losses only.


def quick_rule(tolerance=0.4, layout=TENSORS):
    return QuickLossOnly(tolerance, quiet_s=0.02).stop_rule(critical=False)(layout)


def test_a_silence_ends_the_transfer_within_the_bound_alone():
    rule = quick_rule()
    assert not rule.satisfied(progress(but(3, 4), now_s=1.0, last_s=1.0))
    assert rule.deadline_s(progress(but(3, 4), now_s=1.0, last_s=1.0)) == 1.02
    assert not rule.satisfied(progress(but(3, 4), now_s=1.0199, last_s=1.0))
    assert rule.satisfied(progress(but(3, 4), now_s=1.02, last_s=1.0))
    rule = quick_rule()
    state = progress(but(2, 3, 4), now_s=9.0, last_s=1.0, probes=4)
    assert not rule.satisfied(state)
    assert rule.deadline_s(state) is None


def test_within_the_bound_a_question_since_the_last_chunk_ends_the_transfer():
    rule = quick_rule()
    assert not rule.satisfied(progress(but(2, 3, 4), now_s=1.0, last_s=1.0))
    assert not rule.satisfied(progress(but(2, 3, 4), now_s=1.001, last_s=1.0, probes=1))
    assert not rule.satisfied(progress(but(3, 4), now_s=1.002, last_s=1.002, probes=1))
    assert rule.satisfied(progress(but(3, 4), now_s=1.003, last_s=1.002, probes=2))


def test_a_transfer_gives_up_its_tail_within_the_bound():
    layout = layout_of(100)

    def received(first_lost):
        network = Network(survives=lambda sequence, nth: sequence < first_lost or nth >= 2)
        rule = quick_rule(0.1, layout)
        outcome = transfer(random_payload(layout), layout, rule=rule, network=network)
        return outcome.receiver.received_count

    assert received(95) == 95
    assert received(85) >= 90


def test_a_question_within_a_pass_does_not_end_a_transfer():
    layout = layout_of(100)
    path = unpaced(layout, room=8)
    rule = QuickLossOnly(0.4, 1.0).stop_rule(critical=False)(layout)
    outcome = transfer(random_payload(layout), layout, rule=rule, path=path)
    assert outcome.receiver.received_count == 100


# What users write.


@pytest.mark.parametrize(
    "value", [0.25, "fixed:tolerance=0.25", {"policy": "fixed", "tolerance": 0.25}]
)
def test_a_policy_may_be_written_in_any_form(value):
    assert as_policy(value) == Fixed(0.25)


@pytest.mark.parametrize(
    "policy",
    [
        Fixed(0.1 + 0.2),
        Phased(low=0.008, high=0.408),
        PerLayer(0.1),
        PerLayer(0.1, first=0.2, last=0.0, tensors={"*.bias": 0, "conv[0-9].w": 1 / 3}),
        EarlyClose(0.1, 0.05),
        EarlyClose(0.1, 1e-4, must="*.bias;head.*"),
        EarlyClose(0.1, 0.05, patience=1.5),
        QuickLossOnly(0.1, 0.02),
    ],
)
def test_the_text_of_a_policy_builds_it_again(policy):
    assert as_policy(str(policy)) == policy


def test_the_tolerance_of_a_policy_is_the_most_it_gives_up():
    for critical in (True, False):
        assert Phased(low=0.008, high=0.408).tolerance(critical) == (0.008 if critical else 0.408)
        assert PerLayer(0.1, first=0.3, tensors={"a": 0.2}).tolerance(critical) == 0.3
        assert PerLayer(0.0).tolerance(critical) == 0.0
        assert EarlyClose(0.2, 1).tolerance(critical) == 0.2
        assert QuickLossOnly(0.2, 1).tolerance(critical) == 0.2
    assert PerLayer(0.0) != Fixed(0)
