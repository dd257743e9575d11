"""The transport's benchmark: cases, records of hand-made figures, repetitions, what is printed."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from testbed.bench import records, transport
from testbed.bench.cases import MOST_REPETITIONS, Case, Selection
from testbed.bench.network import LinkKind
from testbed.bench.records import byte_bound_s, record_of

CONTRACT = {
    *("case", "rate_bps", "rtt_s", "loss", "tolerance", "repair", "congestion_control"),
    *("completion_s", "byte_bound_s", "ratio_to_bound", "goodput_bps", "peer"),
    *("cpu_s_per_gb_sender", "cpu_s_per_gb_receiver"),
    *("cpu_s_per_gb_wire_sender", "cpu_s_per_gb_wire_receiver"),
}
CASE = Case(name="a/b", link=LinkKind(rate_bps=100_000_000, loss=0.5), tolerance=0.008)


def flow(began_s, ended_s, *, cpu_s=0.01, wire_bytes=2_000_000, **others):
    common = {"bytes_sent": 1_950_000, "control_bytes": 500, "carried_bytes": 0, "passes": 2}
    spent = {"cpu_s": cpu_s, "wire_bytes": wire_bytes, "began_s": began_s, "ended_s": ended_s}
    return spent | common | others


def at_server(cpu_s=0.02, arrived=500, **others):
    return flow(0, 1, cpu_s=cpu_s, chunks_received=arrived, chunk_count=500, **others)


def test_a_record_has_processor_time_by_what_arrived_and_by_what_was_sent():
    figures = {"server": [at_server(arrived=250)] * 3, "worker-1": [flow(5.0, 5.2)] * 3}
    record = record_of(CASE, "ok", figures)
    assert record.keys() >= CONTRACT
    assert record["delivered_share"] == 0.5
    assert record["cpu_s_per_gb_sender"] == pytest.approx(0.01 / 0.5e6 * 1e9)
    assert record["cpu_s_per_gb_receiver"] == pytest.approx(0.02 / 0.5e6 * 1e9)
    assert record["cpu_s_per_gb_wire_sender"] == pytest.approx(0.01 / 2e6 * 1e9)
    assert record["cpu_s_per_gb_wire_receiver"] == pytest.approx(0.02 / 2e6 * 1e9)
    assert record["wire_bytes"] == 2_000_000
    assert record["goodput_bps"] == pytest.approx(4e6 / 0.2)
    assert record["control_share"] == pytest.approx(1000 / (1_950_000 + 1000))


def test_repetitions_and_intervals_are_in_the_record():
    spans = [0.20, 0.21, 0.22]
    figures = {
        "server": [at_server()] * 3,
        "worker-1": [flow(1.0, 1.0 + span_s) for span_s in spans],
    }
    record = record_of(CASE, "ok", figures)
    assert record["n"] == 3
    assert record["completion_s"] == pytest.approx(0.21)
    assert record["completion_low_s"] < 0.20
    assert record["completion_high_s"] > 0.22
    assert record["cpu_s_per_gb_sender_low"] == pytest.approx(record["cpu_s_per_gb_sender"])
    assert record["narrow"] is False  # three values that differ by 5 % say little
    assert "wide: an interval beyond 10%" in transport.cells(record)
    assert ".." in transport.cells(record)[2]
    assert record_of(CASE, "ok", {name: [mine[0]] * 3 for name, mine in figures.items()})["narrow"]


def test_a_case_that_failed_has_all_keys_and_no_values():
    done = record_of(CASE, "ok", {"server": [at_server()], "worker-1": [flow(0, 1)]})
    failed = record_of(CASE, "timeout", {})
    assert failed.keys() == done.keys()
    assert failed["completion_s"] is failed["narrow"] is failed["cpu_s_per_gb_wire_sender"] is None
    assert transport.cells(failed)[-1] == "not done in 20 s"


def test_an_incast_adds_up_its_senders():
    case = replace(CASE, link=LinkKind(rate_bps=100_000_000, workers=2))
    figures = {
        "server": [at_server(carried_bytes=2_500_000)],
        "worker-1": [flow(0.0, 0.2)],
        "worker-2": [flow(0.1, 0.4)],
    }
    record = record_of(case, "ok", figures)
    assert record["completion_s"] == 0.4
    assert record["wire_bytes"] == 4_000_000
    assert record["cpu_s_per_gb_sender"] == pytest.approx(0.02 / 2e6 * 1e9)
    assert record["link_busy"] == pytest.approx(0.5)
    assert record["jain"] == pytest.approx((5 + 1 / 0.3) ** 2 / 2 / (25 + 1 / 0.09))


def test_the_bound_knows_a_pace_where_the_link_has_no_rate():
    on_link = byte_bound_s(replace(CASE, link=LinkKind(rate_bps=10**9)))
    paced = byte_bound_s(replace(CASE, link=LinkKind(), pace_bps=10**9))
    assert on_link == paced
    assert byte_bound_s(replace(CASE, link=LinkKind())) is None


def test_names_are_unique_and_quick_has_few():
    names = [[case.name for case in Selection(quick=quick).cases()] for quick in (True, False)]
    for name in names:
        assert len(name) == len(set(name))
    assert len(names[0]) < 30
    assert {"100M/incast-32/tcp-cubic", "veth/offloads-on/passes+shuffled"} <= set(names[1])
    assert {"10G/244MB/streaming", "100M/loss-0%/P-0%/passes+auth"} <= set(names[1])
    links = [case.link for case in Selection().cases()]  # each is made once
    changes = sum(left != right for left, right in itertools.pairwise(links))
    assert changes + 1 == len(set(links))


def is_finished(*series, repeats=3, most=MOST_REPETITIONS, span_s=0.01):
    case = replace(CASE, repeats=repeats, most=most)
    by_side = dict(zip(("server", "worker-1"), series * 2, strict=False))
    figures = {
        name: [
            at_server(cpu_s) if name == "server" else flow(0.0, span_s, cpu_s=cpu_s)
            for cpu_s in values
        ]
        for name, values in by_side.items()
    }
    return records.is_finished(case, figures)


def repeated(draw, **options):
    values = [draw()]
    while not is_finished(values, **options):
        values.append(draw())
    return values


def interval(values):
    ends = records.interval(values)
    assert ends is not None
    return ends


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.1, 0.2])
def test_the_interval_holds_the_true_median_also_where_it_decides_when_to_stop(spread):
    random = np.random.default_rng(7)
    held = 0
    for _ in range(1000):
        low, high = interval(repeated(lambda: 2.0 * np.exp(random.normal(0, spread))))
        held += low <= 2.0 <= high
    assert held >= 920


def test_the_interval_lies_about_the_median_in_ratios():
    low, high = interval([1.0, 1.1, 1.3])
    assert low * high == pytest.approx(1.1**2)
    # Student's t for two degrees of freedom, by the logarithms' deviation, by sqrt(pi / 2 / 3)
    deviation = np.std(np.log([1.0, 1.1, 1.3]), ddof=1)
    assert np.log(high / 1.1) == pytest.approx(4.30265 * deviation * np.sqrt(np.pi / 6), rel=1e-5)


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 1.0], [-1.0, 1.0]])
def test_there_is_no_interval_where_there_is_nothing_to_know(values):
    assert records.interval(values) is None
    assert not records.is_narrow(values)


def test_equal_values_are_enough_and_scattered_ones_are_repeated_to_the_bound():
    assert len(repeated(lambda: 1.0)) == 3
    scattered = iter([1.0, 3.0] * 10)
    assert len(repeated(lambda: next(scattered), most=9)) == 9


def test_every_quantity_must_be_narrow_and_the_time_is_a_bound_but_not_for_the_fewest():
    calm, wild = [1.0, 1.0, 1.0], [1.0, 2.0, 4.0]
    assert is_finished(calm, calm)
    assert not is_finished(calm, wild)
    assert is_finished(wild, span_s=records.TIME_S)
    assert not is_finished(wild, repeats=4, span_s=records.TIME_S)
