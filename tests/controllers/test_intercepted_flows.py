"""Packets that pass by the switch's cache after an impairment's end are counted with it."""

from __future__ import annotations

from typing import Any

import pytest

from controllers.impairments.base import MeterCounts
from controllers.impairments.police import InterceptedFlows


class _Switch:
    """A switch whose meter shows these packets, one reading after another."""

    def __init__(self, readings):
        self.readings = readings
        self.removed = 0
        self.slept_s = 0.0

    def meter_counts(self, _switch, _meter):
        packets = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return MeterCounts(packets=packets, size_bytes=100 * packets, dropped=packets)

    def sleep(self, duration_s):
        self.slept_s += duration_s

    def remove_meter(self, _switch, _meter):
        self.removed += 1

    def barrier(self, _switch):
        pass


def counted(readings):
    flows = InterceptedFlows.__new__(InterceptedFlows)
    switch: Any = _Switch(readings)
    flows._lab, flows.switch, flows.cookie = switch, "s1", 1
    return flows.counts(), switch


@pytest.mark.parametrize(
    ("readings", "packets", "slept_s"),
    [([40], 40, 0.01), ([40, 46, 50, 50, 99], 50, 0.03), (list(range(1000)), 50, 0.5)],
    ids=["it stands still", "the cache still sends", "it never stands still"],
)
def test_a_meter_is_read_until_it_stands_still_or_for_a_while(readings, packets, slept_s):
    counts, switch = counted(readings)
    assert (counts.packets, counts.dropped, switch.removed) == (packets, packets, 1)
    assert switch.slept_s == pytest.approx(slept_s)
