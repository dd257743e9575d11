"""The gates of conservation: packets that nothing explains, and those that the emulator lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.verdict.gate import Gate, compared, not_measured
from testbed.verdict.ledgers import Conservation

_UNEXPLAINED = "unexplained share of packets"
_LOST = "packets that the emulator lost by accident"


def gates(ledgers: Conservation | None, limits: Mapping[str, Any], unreadable: str) -> list[Gate]:
    """The largest share of packets that nothing explains, and the most that one part lost.

    Args:
        ledgers: None where the counters could not be read; `unreadable` says why.
    """
    limit, most = limits["conservation"], limits["emulator_losses"]
    why = ""
    if ledgers is None:
        why = f"no counters: {unreadable}"
    elif not ledgers.quiet:
        why = "packets were still moving before or after the training"
    if ledgers is None or why:
        return [
            not_measured(_UNEXPLAINED, "conservation", limit, why),
            not_measured(_LOST, "emulator_losses", most, why),
        ]
    share, where = ledgers.worst()
    hidden, hidden_share, place = ledgers.most_hidden()
    note = (
        f"a leak of up to {hidden} packets ({hidden_share:.2%} of the traffic) could not be seen "
        f"at {place}"
    )
    lost, part = ledgers.worst_loss()
    return [
        compared(
            _UNEXPLAINED,
            "conservation",
            share,
            limit,
            where=where if share else "",
            note=note if hidden else "",
        ),
        compared(_LOST, "emulator_losses", lost, most, where=part if lost else ""),
    ]
