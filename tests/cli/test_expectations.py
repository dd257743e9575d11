"""Ranges of ratios in a file: which ratios they are about, and when they hold."""

import pytest

from analysis.comparison import Compared
from analysis.statistics.intervals import Estimate
from testbed.cli import expectations
from testbed.shared.input_error import InputError


def compared(arm, level, value, *, metric="round_latency_s.p50"):
    ratio = Estimate(value=value, n=1)
    factors = {"burst": level}
    return Compared(arm=arm, metric=metric, factors=factors, first=1.0, second=value, ratio=ratio)


FOUND = [
    compared("dblp", "60 %", 1.02),
    compared("dblp", "60 %", 1.08, metric="round_latency_s.p99"),
    compared("dblp", "90 %", 1.04),
    compared("tcp", "60 %", 0.9),
]


def failing(tmp_path, *entries):
    (file := tmp_path / "expect.yaml").write_text("\n- ".join(["expect:", *entries]))
    lines = expectations.failing(file, expectations.read(file), FOUND)
    return [line.removeprefix(f"{file}: ") for line in lines]


@pytest.mark.parametrize(
    ("entry", "fail"),
    [
        ("low: 0.9, high: 1.04", []),  # the ends belong to it
        ("low: 0.95, high: 1.05", ["tcp, burst 60 %"]),
        ("high: 1.03", ["dblp, burst 90 %"]),
        ("low: 1", ["tcp, burst 60 %"]),
        ("low: 2", ["dblp, burst 60 %", "dblp, burst 90 %", "tcp, burst 60 %"]),
        ("low: 2, arms: [dblp]", ["dblp, burst 60 %", "dblp, burst 90 %"]),
        ("low: 2, points: { burst: [60 %] }", ["dblp, burst 60 %", "tcp, burst 60 %"]),
        ("low: 2, arms: [dblp], points: { burst: [90 %] }", ["dblp, burst 90 %"]),
    ],
)
def test_an_entry_is_about_the_arms_and_points_that_it_names(tmp_path, entry, fail):
    lines = failing(tmp_path, f"{{ metric: round_latency_s.p50, {entry} }}")
    assert [line.split(": ")[1] for line in lines] == fail


def test_a_line_says_which_entry_what_was_found_and_what_was_expected(tmp_path):
    entries = [f"{{ metric: round_latency_s.p{each}, arms: [dblp], points: {{ burst: [60 %] }}, "
               f"low: 0.9, high: 1.05 }}" for each in (50, 99)]  # fmt: skip
    assert failing(tmp_path, *entries) == [
        "expect.1: dblp, burst 60 %: round_latency_s.p99 is 1.08 times the first; "
        "expected 0.9 to 1.05"
    ]


def test_what_nobody_measured_does_not_hold(tmp_path):
    # A metric that this point lacks, and a point that this arm lacks.
    tails = "{ metric: round_latency_s.p99, arms: [dblp], high: 2 }"
    elsewhere = "{ metric: round_latency_s.p50, arms: [tcp], points: { burst: [90 %] }, low: 0.5 }"
    assert failing(tmp_path, tails, elsewhere) == [
        "expect.0: dblp, burst 90 %: round_latency_s.p99 was not measured in both; "
        "expected up to 2",
        "expect.1: tcp, burst 90 %: round_latency_s.p50 was not measured in both; "
        "expected 0.5 or more",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("expect: []", "expect: []: must have at least 1 entry"),
        ("ratios: []", "ratios: unknown key; valid: expect"),
        ("expect: [{ metric: speed, high: 1 }]", "expect.0.metric: 'speed'; valid: a metric of"),
        ("expect: [{ metric: bytes_sent }]", "expect.0.low: missing; valid: low, high or both"),
        (
            "expect: [{ metric: bytes_sent, low: 2, high: 1 }]",
            "expect.0.low: 2; valid: no more than high, 1",
        ),
        ("expect: [{ metric: bytes_sent, low: x }]", "expect.0.low: 'x': must be a number of 0 or"),
        (
            "expect: [{ metric: bytes_sent, arms: [dbpl], high: 1 }]",
            "expect.0.arms: 'dbpl' was not compared; valid: dblp, tcp; did you mean 'dblp'?",
        ),
        (
            "expect: [{ metric: bytes_sent, points: { q: [1] }, high: 1 }]",
            "expect.0.points: 'q' was not compared; valid: burst",
        ),
        (
            "expect: [{ metric: bytes_sent, points: { burst: [61 %] }, high: 1 }]",
            "expect.0.points.burst: '61 %' was not compared; valid: 60 %, 90 %",
        ),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, said):
    (file := tmp_path / "expect.yaml").write_text(text)
    with pytest.raises(InputError) as refused:
        expectations.failing(file, expectations.read(file), FOUND)
    assert str(refused.value).startswith(f"{file}: {said}")
    assert "\n" not in str(refused.value)
