"""Numbers with a unit, where the key's ending says which."""

import pytest

from testbed.shared import units
from testbed.transport.congestion import CONGESTION_CONTROLS


@pytest.mark.parametrize(
    ("key", "text", "number"),
    [
        ("rate_bps", "100Mbit", 100_000_000),
        ("rate_bps", "1.5Gbps", 1_500_000_000),
        ("rate_bps", "100mbit", 100_000_000),
        ("rate_bps", "1e-1Gbit", 100_000_000),
        ("delay_s", "1.1ms", 0.0011),
        ("delay_s", "20 µs", 0.00002),
        ("run_timeout_s", "2min", 120),
        ("wait_ms", "0.5 s", 500),
        ("arms.dblp.repair.walk_s_per_chunk", "0.5 ms", 0.0005),
        ("queue_bytes", "64KiB", 65_536),
        ("queue_bytes", "1.5 GiB", 1_610_612_736),
    ],
)
def test_a_unit_becomes_the_plain_number(key, text, number):
    result = units.number(key, text)
    assert result == number
    assert type(result) is type(number)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("rate_bps", "100MB/s"),  # bytes a second
        ("rate_bps", "100mbps"),  # megabits to most, megabytes to tc
        ("rate_bps", "100M"),
        ("queue_bytes", "64KB"),  # 1000 or 1024
        ("delay_s", "100Mbit"),
        ("delay_s", "-5ms"),
        ("delay_s", "5e999999999ms"),
        ("rounds", "5ms"),
        ("frames_per_s", "5ms"),  # no time
    ],
)
def test_what_does_not_fit_stays_a_text(key, text):
    assert units.number(key, text) is None
    assert units.converted({key: text}) == {key: text}


def test_entries_of_a_list_or_mapping_have_the_unit_of_the_key_above():
    value = {"at_s": {"every": "500ms", "until": 9}, "factors": {"topology.rate_bps": ["1Mbit"]}}
    expected = {"at_s": {"every": 0.5, "until": 9}, "factors": {"topology.rate_bps": [1_000_000]}}
    assert units.converted(value) == expected


@pytest.mark.parametrize(
    "value", ["fixed:rate_bps=20Mbit", {"name": "fixed", "rate_bps": "20 Mbit/s"}]
)
def test_options_take_units_and_keep_plain_numbers(value):
    assert CONGESTION_CONTROLS.text(value) == "fixed:rate_bps=20000000"
    assert CONGESTION_CONTROLS.text("fixed:rate_bps=2e7") == "fixed:rate_bps=2e7"
    by_yaml_a_text = {"name": "fixed", "rate_bps": "20e6"}
    assert CONGESTION_CONTROLS.text(by_yaml_a_text) == "fixed:rate_bps=20000000.0"
