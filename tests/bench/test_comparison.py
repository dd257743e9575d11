"""`--compare`: what is read of an earlier run, and what is said of it."""

import json

import pytest
from rich.console import Console

from testbed.bench.transport import console, measurement
from testbed.bench.transport.cases import Selection
from testbed.shared.input_error import InputError

MACHINE = {"cpu": "A", "cpus": 2, "kernel": "6", "compiled": True, "load_average": [0.5, 1, 2]}


def record(name="100M/x", *, completion_s=1.0, half=0.05, cpu=2.0, **others):
    interval = {"completion_low_s": completion_s - half, "completion_high_s": completion_s + half}
    sides: dict[str, float] = {}
    for side in ("sender", "receiver"):
        key = f"cpu_s_per_gb_{side}"
        sides |= {key: cpu, f"{key}_low": cpu * 0.9, f"{key}_high": cpu * 1.1}
        wire = f"cpu_s_per_gb_wire_{side}"
        sides |= {wire: cpu / 2, f"{wire}_low": cpu * 0.45, f"{wire}_high": cpu * 0.55}
    common = {"case": name, "status": "ok", "completion_s": completion_s, "machine": MACHINE}
    common |= {"rate_bps": 10**8, "n": 5}
    return common | interval | sides | others


def written(tmp_path, found):
    path = tmp_path / "before.json"
    path.write_text(found if isinstance(found, str) else json.dumps(found))
    return path


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            [record("veth/a"), record("1G/b")],
            "has none of these cases; its own begin with 1G, veth",
        ),
        ([], "has none of these cases; its own begin with none at all"),
        ({"case": "100M/x"}, "is no list of this benchmark's cases; expected what --json wrote"),
        ([{"task": "glyphs"}], "is no list of this benchmark's cases; expected what --json wrote"),
        ("{", "is no JSON; expected what --json wrote"),
    ],
)
def test_a_file_that_cannot_be_compared_is_one_line(tmp_path, found, expected):
    path = written(tmp_path, found)
    with pytest.raises(InputError) as refused:
        console.read_earlier(path, ["100M/x"])
    assert str(refused.value) == f"--compare {path}: {expected}"


@pytest.mark.parametrize(
    ("completion_s", "cpu", "rate_bps", "expected"),
    [
        (1.0, 2.38, 10**8, (False, False)),  # apart, but another run of the same code may be so
        (1.0, 2.42, 10**8, (False, True)),
        (1.0, 1.65, 10**8, (False, True)),
        (1.01, 2.0, 10**8, (False, False)),
        (1.03, 2.0, 10**8, (True, False)),
        (1.1, 2.0, None, (False, False)),  # no link holds the pace: it is processor time
        (1.3, 2.0, None, (True, False)),
    ],
)
def test_a_star_needs_more_than_what_two_runs_of_the_same_code_differ_by(
    completion_s, cpu, rate_bps, expected
):
    tight = {"rate_bps": rate_bps, "half": 0.001}
    then, now = record(**tight), record(completion_s=completion_s, cpu=cpu, **tight)
    for each in (then, now):
        for key in ("cpu_s_per_gb_sender", "cpu_s_per_gb_wire_sender"):
            each |= {f"{key}_low": each[key] * 0.999, f"{key}_high": each[key] * 1.001}
    found = console.changes_of(now, then)
    assert not isinstance(found, str)
    assert found["completion_s"].ratio == pytest.approx(completion_s)
    assert (found["completion_s"].apart, found["cpu_s_per_gb_sender"].apart) == expected
    assert found["cpu_s_per_gb_wire_sender"].apart is expected[1]


@pytest.mark.parametrize(
    ("then", "facts", "expected"),
    [
        ({}, {}, []),
        ({"compiled": None}, {}, ["was measured on another machine: compiled None (now True)"]),
        ({"load_average": [1.5, 0, 0]}, {}, []),
        ({"load_average": [3.5, 0, 0]}, {}, ["was measured at a load of 3.50 (now 0.50)"]),
        ({"load_average": []}, {"compiled": True}, []),
    ],
)
def test_what_makes_a_comparison_doubtful_is_said(then, facts, expected):
    earlier = {"100M/x": record(machine=MACHINE | then)}
    assert console.doubts(earlier, MACHINE | facts) == expected


@pytest.mark.parametrize("ends", [KeyboardInterrupt, measurement.BenchError])
def test_an_interrupted_run_keeps_what_was_measured_beside_the_file(
    ends, tmp_path, monkeypatch, capsys
):
    def measure(*_, **__):
        yield record("100M/loss-0%/P-0%/passes", status="timeout", limit_s=8.0)
        raise ends

    monkeypatch.setattr(measurement, "measure", measure)
    whole, partial = tmp_path / "x.json", tmp_path / "x.interrupted.json"
    whole.write_text("whole")
    with pytest.raises(ends):
        console.run(Selection(), json_file=whole)
    assert whole.read_text() == "whole"
    (kept,) = json.loads(partial.read_text())
    assert kept["interrupted"] is True
    _, *printed = capsys.readouterr().out.splitlines()  # the first says what it will do
    assert printed[0].startswith("case | completion | ")
    assert printed[1].endswith("not done in 8 s")
    assert printed[-1].startswith("records of 1 of ")
    assert printed[-1].endswith(f" cases: {partial}")
    earlier = console.read_earlier(partial, [kept["case"]])
    assert "was interrupted: it has not all cases" in console.doubts(earlier, kept["machine"])


@pytest.mark.parametrize(
    ("now", "then", "words"),
    [
        ({"status": "timeout"}, {}, "was ok, is timeout"),
        ({"status": "timeout"}, {"status": "timeout"}, "still timeout"),
        ({"loss": 0.1}, {"loss": 0.2}, "another case then: loss was 0.2, is 0.1"),
    ],
)
def test_what_cannot_be_compared_says_why(now, then, words):
    assert console.changes_of(record(**now), record(**then)) == words


def test_the_printed_comparison(tmp_path):
    path = written(tmp_path, [record(completion_s=1.0), record("100M/late", status="timeout")])
    earlier = console.read_earlier(path, ["100M/x", "100M/late"])
    here = Console(record=True, width=300, force_terminal=False, file=(tmp_path / "out").open("w"))
    now = [record(completion_s=0.5, cpu=2.0), record("100M/late"), record("100M/new")]
    console.compare_with(here, now, earlier, MACHINE | {"kernel": "7"}, path)
    lines = here.export_text().splitlines()
    assert "* where the intervals are a factor of 1.2 apart (1.02: completion" in lines[0]
    assert lines[1] == f"{path}: was measured on another machine: kernel 6 (now 7)"
    assert "100M/x 0.50* 1.00 1.00 1.00 1.00 " in lines
    assert "100M/late - - - - - was timeout, is ok" in lines
    assert not [line for line in lines if "100M/new" in line]


def test_a_wide_interval_is_named_and_a_few_scattered_values_are_shown_by_their_ends():
    shown = record(n=2, narrow=False, ratio_to_bound=1.0, goodput_bps=1e6, control_share=0.0)
    shown |= {"jain": None, "link_busy": None, "completion_min_s": 0.08, "completion_max_s": 0.09}
    assert "wide: an interval beyond 10%" in console.cells(shown)
    assert not [cell for cell in console.cells(shown | {"narrow": True}) if "wide" in cell]
    assert console.cells(shown)[2] == "min 80 ms, max 90 ms"
    assert console.cells(shown | {"n": 5})[2] == "950 ms..1.05 s"
    assert console.cells(shown | {"n": 3, "narrow": True})[2] == "950 ms..1.05 s"
