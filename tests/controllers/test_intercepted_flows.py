"""Packets that pass by the switch's cache after an impairment's end are counted with it."""

from __future__ import annotations

from typing import Any

from controllers.impairments.base import MeterCounts
from controllers.impairments.intercepted_flows import InterceptedFlows


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


def test_a_meter_that_stands_still_is_read_twice():
    counts, switch = counted([40])
    assert (counts.packets, switch.removed) == (40, 1)
    assert 0 < switch.slept_s < 0.05


def test_what_the_cache_still_sends_through_the_meter_counts():
    counts, switch = counted([40, 46, 50, 50, 99])
    assert (counts.dropped, switch.removed) == (50, 1)


def test_a_meter_that_never_stands_still_is_given_up():
    counts, switch = counted(list(range(1000)))
    assert switch.removed == 1
    assert counts.packets < 100
