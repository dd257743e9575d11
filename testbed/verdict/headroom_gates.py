"""The gates of processor and clock: whether the emulator ran when it wanted to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.verdict.gate import Gate, compared, not_measured, worst
from testbed.verdict.processor_headroom import Headroom


def gates(headroom: Headroom, limits: Mapping[str, Any], other_programs: str) -> list[Gate]:
    """How long the emulator waited, what others took, and how long nothing ran.

    Args:
        other_programs: those outside the lab that used most of the processors, in words.
    """
    stall = "longest time that nothing ran (s)"
    return [
        _waited(headroom, limits),
        _others(headroom, limits, other_programs),
        compared(stall, "clock_stall_s", headroom.stall_s, limits["clock_stall_s"]),
        compared("drift of the clock", "clock_drift", headroom.drift, limits["clock_drift"]),
    ]


def _waited(headroom: Headroom, limits: Mapping[str, Any]) -> Gate:
    name = "share of the time that the emulator waited for a processor"
    key, limit = "cpu_wait", limits["cpu_wait"]
    known = [(share, process) for process, share in headroom.waited.items() if share is not None]
    gone = [process for process, share in headroom.waited.items() if share is None]
    missing = f"no scheduling statistics of {', '.join(gone)}" if gone else ""
    if not known:
        return not_measured(name, key, limit, missing or "no process was watched")
    value, where = worst(known)
    return compared(name, key, value, limit, where=where, missing=missing)


def _others(headroom: Headroom, limits: Mapping[str, Any], programs: str) -> Gate:
    name = "share of the processors' time that others took"
    key, limit = "cpu_others", limits["cpu_others"]
    if headroom.contended is None:
        return not_measured(name, key, limit, "/proc/stat cannot be read")
    return compared(name, key, headroom.contended, limit, where=programs)
