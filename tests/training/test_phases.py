"""Phase detectors: what each calls critical, round by round."""

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from testbed.training.phases import AnyPhases, Observation


def detector(section, rounds_per_epoch=1):
    return TypeAdapter(AnyPhases).validate_python(section).create(rounds_per_epoch)


def answers(rule, norms, *, begin=0):
    seen = []
    for number, norm in enumerate(norms):
        rule.observe(
            Observation(
                round_number=begin + number,
                gradient=np.array([norm, 0, 0, 0], dtype=np.float32),
            )
        )
        seen.append(rule.critical)
    return seen


LOOKED_AT = [1.0, 9.0, 9.0, 1.1, 9.0, 9.0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("cadence", "norms", "critical"),
    [
        (1, [4.0, 3.9, 3.8], [True, False, False]),
        (1, [1.0, 1.5], [True, True]),
        (1, [1.0, 0.5], [True, True]),
        (1, [1.0, 1.49], [True, False]),
        # Between two looks the answer holds.
        (3, LOOKED_AT, [True, True, True, False, False, False, True, True]),
        ("epoch", LOOKED_AT, [True, True, True, False, False, False, True, True]),
        # A norm that cannot be compared; the square of the last is beyond float32.
        (1, [0.0, 1.0], [True, True]),
        *((1, [odd, 1.0], [True, True]) for odd in (float("nan"), float("inf"), 1e30)),
        *((1, [1.0, odd], [True, True]) for odd in (float("nan"), float("inf"), 1e30)),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_a_change_of_the_norm_by_half_is_critical_and_so_is_the_start(cadence, norms, critical):
    rule = detector({"eta": 0.5, "cadence": cadence}, rounds_per_epoch=3)
    assert rule.critical
    assert answers(rule, norms) == critical


def test_by_the_off_by_one_of_the_evaluation_the_round_of_a_look_runs_at_the_high_tolerance():
    """A phase that begins after a round holds from its broadcast to the next round's gather."""
    norms = [1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 1.0]
    rule = detector({"cadence": 3, "first_round_high": True})
    after = answers(rule, norms)
    in_gather = [True, *after[:-1]]
    assert in_gather == [True, True, True, False, True, True, False]


def test_constants_and_schedules():
    assert answers(detector({"detector": "always-critical"}), [1.0, 9.0]) == [True, True]
    assert answers(detector({"detector": "never-critical"}), [1.0, 9.0]) == [False, False]
    rule = detector({"detector": "schedule", "critical_rounds": [[0, 1], [4, 4]]})
    assert rule.critical
    assert answers(rule, [1.0] * 6) == [True, True, False, False, True, False]
    assert not detector({"detector": "schedule", "critical_rounds": [[2, 3]]}).critical


@pytest.mark.parametrize(
    "section",
    [
        {"cadence": 2},
        {"detector": "never-critical"},
        {"detector": "schedule", "critical_rounds": [[3, 5]]},
    ],
    ids=lambda section: section.get("detector", "gradient-norm"),
)
def test_a_restored_detector_says_what_an_uninterrupted_one_says(section):
    rng = np.random.default_rng(1)
    norms = rng.lognormal(sigma=0.7, size=24).tolist()
    whole = answers(detector(section, 3), norms)
    for cut in range(1, 24):
        first, second = detector(section, 3), detector(section, 3)
        after = answers(first, norms[:cut])
        second.restore(first.state())
        assert second.critical == first.critical
        after += answers(second, norms[cut:], begin=cut)
        assert after == whole


@pytest.mark.parametrize(
    "section",
    [
        {"detector": "gradient-norms"},
        {"detector": "schedule"},
        {"detector": "schedule", "critical_rounds": [[3, 2]]},
        {"detector": "schedule", "critical_rounds": [[0, 3], [3, 5]]},
        {"detector": "never-critical", "eta": 0.5},
        {"eta": 0},
    ],
)
def test_impossible_sections_are_refused(section):
    with pytest.raises(ValidationError):
        detector(section)
