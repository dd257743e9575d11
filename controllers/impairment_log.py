"""The log of impairments: a record when one begins, ends, or is skipped."""

from __future__ import annotations

from controllers.impairments.base import Effect
from controllers.timeline import Occurrence
from testbed.shared.jsonl import JsonLinesWriter


def write(
    log: JsonLinesWriter,
    occurrence: Occurrence,
    action: str,
    times_s: tuple[float, float, float],
    effect: Effect,
) -> None:
    """Append a record; `times_s` are when it was planned, sent and acknowledged."""
    planned_s, sent_s, acknowledged_s = times_s
    parameters = occurrence.parameters
    log.write(
        {
            "name": parameters.label,
            "kind": parameters.kind,
            "counts_as": occurrence.impairment.counts_as,
            "changes_rates": occurrence.impairment.changes_rates,
            "host": parameters.host if parameters.link is None else "",
            "target": parameters.target,
            "action": action,
            "round": occurrence.round_number,
            "leg": occurrence.leg,
            "planned_s": planned_s,
            "sent_s": sent_s,
            "acknowledged_s": acknowledged_s,
            **vars(effect),
            "details": dict(effect.details),
        }
    )
