"""The gates of processor and clock: whether the emulator ran when it wanted to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.verdict.gate import Gate, compared, not_measured, worst
from testbed.verdict.processor_headroom import Headroom
from testbed.verdict.processor_waits import WINDOW_S


def gates(headroom: Headroom, limits: Mapping[str, Any], other_programs: str) -> list[Gate]:
    """How long the emulator waited, what others took, and how long a processor stood still.

    Args:
        other_programs: those outside the lab that used most of the processors, in words.
    """
    return [
        _waited(headroom, limits),
        _others(headroom, limits, other_programs),
        _stalled(headroom, limits),
    ]


def _waited(headroom: Headroom, limits: Mapping[str, Any]) -> Gate:
    name, key = "mean wait of the emulator for a processor, in its worst second (s)", "cpu_wait_s"
    gone = [process for process, wait in headroom.waited.items() if wait is None]
    missing = [f"no scheduling statistics of {', '.join(gone)}"] if gone else []
    if headroom.longest_window_s > 2 * WINDOW_S:
        missing.append(f"{headroom.longest_window_s:.1f} s were read as one")
    told = "; ".join(missing)
    waits = [
        (wait.mean_s, _at(process, wait.at_s))
        for process, wait in headroom.waited.items()
        if wait is not None
    ]
    if not waits:
        return not_measured(name, key, limits[key], told or "no process was watched")
    mean_s, where = worst(waits)
    return compared(name, key, mean_s, limits[key], where=where, missing=told)


def _others(headroom: Headroom, limits: Mapping[str, Any], programs: str) -> Gate:
    name = "share of the processors' time that others took"
    key, limit = "cpu_others", limits["cpu_others"]
    if headroom.contended is None:
        return not_measured(name, key, limit, "/proc/stat cannot be read")
    where = f"programs outside the lab: {programs}" if programs else ""
    return compared(name, key, headroom.contended, limit, where=where)


def _stalled(headroom: Headroom, limits: Mapping[str, Any]) -> Gate:
    name, key = "longest time that a processor stood still (s)", "clock_stall_s"
    limit = limits[key]
    found = [
        (each.longest_s, _at(f"processor {each.processor}", each.at_s))
        for each in headroom.stalls
        if each.looks
    ]
    if not found:
        return not_measured(name, key, limit, "no processor was watched")
    blind = [str(each.processor) for each in headroom.stalls if not each.looks]
    missing = f"the watch of processor {', '.join(blind)} never ran" if blind else ""
    ordinary = any(not each.real_time for each in headroom.stalls)
    note = "watched without real-time priority, which root alone may give" if ordinary else ""
    value, where = worst(found)
    return compared(name, key, value, limit, where=where, note=note, missing=missing)


def _at(what: str, at_s: float) -> str:
    return f"{what}, {at_s:.1f} s after the begin"
