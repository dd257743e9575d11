"""The gate of lateness: whether impairments began and ended when they were planned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.verdict.gate import Gate, compared, not_applicable

# With fewer values there is no 99th percentile: the maximum counts.
_LEAST_FOR_P99 = 100


def gates(events: Sequence[Mapping[str, Any]], limits: Mapping[str, Any]) -> list[Gate]:
    """The lateness of begins and ends: the 99th percentile, or the maximum if there are few."""
    key, limit = "impairment_late_s", limits["impairment_late_s"]
    late = sorted(
        (each["acknowledged_s"] - each["planned_s"], f"{each.get('name')} {each['action']}")
        for each in events
        if each.get("action") in ("begin", "end") and each.get("acknowledged_s") is not None
    )
    if not late:
        return [not_applicable("impairment lateness (s)", key, limit, "no impairment began")]
    many = len(late) >= _LEAST_FOR_P99
    rank = math.ceil(0.99 * len(late)) - 1 if many else len(late) - 1
    value, where = late[rank]
    name = "impairment lateness, p99 (s)" if many else "impairment lateness (s)"
    return [compared(name, key, value, limit, where=where)]
