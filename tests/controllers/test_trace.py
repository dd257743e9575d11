"""Traces: what is read from files, when what is due, and what is refused before a lab is built."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from controllers import impairments
from controllers.impairment_plan import Places, resolve
from controllers.impairments.trace import SMALLEST_RATE_BPS, TraceParameters, read_trace

LINK = {"rate_bps": 10_000_000, "delay_s": 0.03, "jitter_s": 0.0}
EXAMPLES = Path(__file__).parents[2] / "examples"


def trace(folder: Path, text: str, **keys: Any) -> TraceParameters:
    (folder / "some.csv").write_text(text)
    document = {"kind": "trace", "file": "some.csv", "link": ["a", "s"], "at_s": [0], **keys}
    return TraceParameters.model_validate(document, context={"folders": [folder]})


def test_a_csv_file_is_resolved_to_its_content_and_lasts_as_long(tmp_path):
    text = "# made up\nt_s, rate_bps, loss\n0, 1e6, 0\n2, 0, 0.5\n3, 2000000, 0\n"
    parameters = trace(tmp_path, text)
    rates = [1e6, SMALLEST_RATE_BPS, 2e6]
    assert parameters.changes == {"t_s": [0, 2, 3], "rate_bps": rates, "loss": [0, 0.5, 0]}
    assert (parameters.length_s, parameters.duration_s, parameters.file) == (4, 4, None)
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    one, other = (read.resolved(seed=1, rounds=1) for read in (parameters, trace(elsewhere, text)))
    assert one == other
    assert "some.csv" not in str(one)
    assert one["changes"] == impairments.read(one).model_dump()["changes"] == parameters.changes


def test_what_is_due_repeats(tmp_path):
    parameters = trace(tmp_path, "t_s,rate_bps\n0,1e6\n2,2e6\n", duration_s=9)
    due = [(at_s, row["rate_bps"]) for at_s, row in itertools.islice(parameters.due(), 5)]
    # The last value holds as long as the one before it: 2 s.
    assert due == [(0.0, 1e6), (2.0, 2e6), (4.0, 1e6), (6.0, 2e6), (8.0, 1e6)]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=300))
def test_mahimahi_s_packets_all_count_once(tmp_path_factory, times_ms):
    times_ms = [*sorted(times_ms), 3001]
    folder = tmp_path_factory.mktemp("trace")
    (folder / "some.trace").write_text("\n".join(map(str, times_ms)))
    read = read_trace("some.trace", [folder])
    assert read["length_s"] == 3.001
    begins = read["changes"]["t_s"]
    ends = [*begins[1:], 3.001]
    for begin, end, rate in zip(begins, ends, read["changes"]["rate_bps"], strict=True):
        assert 0.025 < end - begin < 0.075
        last = end == 3.001
        count = sum(
            begin <= at_ms / 1000 + 1e-9 and (at_ms / 1000 < end - 1e-9 or last)
            for at_ms in times_ms
        )
        planned = max(SMALLEST_RATE_BPS, count * 1514 * 8 / (end - begin))
        assert rate == pytest.approx(planned, abs=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t_s,rate_mbps\n0,1\n", "some.csv: line 1: columns t_s, rate_mbps; valid: t_s and"),
        ("t_s,rate_bps\n0,20Mbit\n", "line 2: rate_bps: '20Mbit': valid: a number, without"),
        ("t_s,rate_bps\n0,20\n1,50\n", "some.csv: rate_bps: 50: the highest .* 100000 or more"),
        ("t_s,loss\n0,0\n3000,0.1\n", r"duration_s\n.* less than or equal to 3600"),
        ("t_s,loss\n", "line 1: no line follows"),
        ("t_s,loss\n0,0\n1\n", "line 3: 1 values; valid: 2"),
        ("t_s,loss\n0,1.5\n", "line 2: loss: 1.5: valid: 0 to 1"),
        ("t_s,loss\n0,0\n# gap\n2,0\n1,0\n", "line 5: t_s: 1: valid: 2.001 to"),
        ("\n", "some.csv: is empty"),
        ("5\n3\n", "line 2: '3': valid: whole milliseconds from 5 to 1000000"),
        ("0\n0\n", "line 2: 0: the last time is the trace's length; valid: 1 or more"),
        (
            "\n".join(["1"] * 60_000 + ["40"]),
            "changes: rate_bps: 1.*: valid: 0 to 1e.10",
        ),
    ],
)
def test_a_wrong_file_is_told_by_line_column_and_value(tmp_path, text, message):
    with pytest.raises(ValidationError, match=message):
        trace(tmp_path, text)


def test_a_trace_is_held_against_its_link_and_against_other_entries(tmp_path):
    places = Places(
        hosts=["a", "b"],
        switches={"s"},
        links=[("a", "s"), ("b", "s")],
        settings={("a", "s"): LINK, ("b", "s"): LINK},
    )
    fast = trace(tmp_path, "t_s,rate_bps,delay_s,jitter_s\n0,2e7,0.1,0.02\n1,1e6,0,0\n")
    with pytest.raises(ValueError, match=r"impairments.0.changes: at 0 s: 20000000 bit/s; valid"):
        resolve([fast], places, rounds=1, seed=1)
    jittery = trace(tmp_path, "t_s,jitter_s\n0,0.1\n")
    with pytest.raises(ValueError, match=r"at 0 s: jitter_s: 0.1; valid: up to 0.03, the delay_s"):
        resolve([jittery], places, rounds=1, seed=1)
    assert places.delays([fast]) == {("a", "s"): pytest.approx(0.12)}
    rates = trace(tmp_path, "t_s,rate_bps\n0,1e6\n")
    assert places.delays([rates]) == {}
    queue = {"kind": "queue", "link": ["a", "s"], "rate_bps": 500_000, "at_s": [0.5]}
    queue["duration_s"] = 1
    with pytest.raises(ValueError, match="both set a rate at a->s"):
        resolve([rates, impairments.read(queue)], places, rounds=1, seed=1)
    lossy = trace(tmp_path, "t_s,loss\n0,0.5\n", link=["s", "a"])
    assert places.delays([lossy]) == {("a", "s"): 0.03}  # the link's own
    assert resolve([rates, lossy], places, rounds=1, seed=1)


@pytest.mark.parametrize("name", ["handover.csv", "cellular.mahimahi"])
def test_the_examples_are_valid(name):
    read = read_trace(name, [EXAMPLES])
    assert math.isclose(read["length_s"], {"handover.csv": 3.3, "cellular.mahimahi": 1.0}[name])
