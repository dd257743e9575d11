"""The gate of conservation: packets that vanished, or appeared, without an explanation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.verdict.conservation import Conservation
from testbed.verdict.gate import Gate, compared, not_measured


def gates(ledgers: Conservation | None, limits: Mapping[str, Any], unreadable: str) -> list[Gate]:
    """The largest share of packets that nothing explains.

    Args:
        ledgers: None where the counters could not be read; `unreadable` says why.
    """
    name, key, limit = "unexplained share of packets", "conservation", limits["conservation"]
    if ledgers is None:
        return [not_measured(name, key, limit, f"no counters: {unreadable}")]
    if not ledgers.quiet:
        return [not_measured(name, key, limit, "packets were still moving after the training")]
    value, where = ledgers.worst()
    left_out = [f"switch {each.switch}: {each.reason}" for each in ledgers.switches if each.reason]
    missing = "; ".join(left_out)
    return [compared(name, key, value, limit, where=where if value else "", missing=missing)]
