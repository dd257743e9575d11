"""The metrics of a user's own programs: their names, units and meanings.

A name has the program, flow, host or link in it, such as `flows.a->b.goodput_bps`. To add one, an
entry here, and its value in `programs`.
"""

from __future__ import annotations

from typing import Any

_WHILE = (
    "from the first announced round's begin to the last one's end; while programs ran where none "
    "is announced, or a link was not sampled twice in between"
)
_FRAMES = f"frames on its link, {_WHILE}"
_QUEUED = f"backlog by rate, {_WHILE}"
_ROUND_TRIP = f"as the sender's TCP smooths it, {_WHILE}"

# Section and quantity -> unit, label, meaning; `{}` stands for the program, flow, host or link.
KINDS = {
    ("programs", "duration_s"): ("s", "Duration of {}", "from the start of a program to its end"),
    ("programs", "wait_s"): (
        "s",
        "Exchange that was not hidden, {}",
        "of a script's hook: from its last bucket until all means were there, mean over steps",
    ),
    ("programs", "waited_for_s"): (
        "s",
        "Wait of others for {}",
        "of a script's hook: for how long the ranks that found this one the slowest of a step "
        "waited for it, the longest of them, less what it waited for another itself; mean over the "
        "steps in which any rank waited",
    ),
    ("flows", "goodput_bps"): (
        "bps",
        "Goodput {}",
        "bits that the receiver's kernel has confirmed, by the time between the first and the last "
        f"sample of the flow's TCP connections, {_WHILE}",
    ),
    ("flows", "bytes"): ("bytes", "Bytes {}", "what TCP connections have delivered in a whole run"),
    ("flows", "retransmits"): (
        "count",
        "Retransmits {}",
        "segments that TCP has sent again in a whole run",
    ),
    ("flows", "rtt_p50_s"): ("s", "Round trip {}, median", _ROUND_TRIP),
    ("flows", "rtt_p95_s"): ("s", "Round trip {}, p95", _ROUND_TRIP),
    ("hosts", "sent_bps"): ("bps", "Sent by {}", _FRAMES),
    ("hosts", "received_bps"): ("bps", "Received by {}", _FRAMES),
    ("hosts", "cpu_s"): (
        "s",
        "Processor time of {}",
        "of all processes in it that were sampled, in a whole run",
    ),
    ("queues", "delay_p50_s"): ("s", "Queue delay {}, median", _QUEUED),
    ("queues", "delay_p95_s"): ("s", "Queue delay {}, p95", _QUEUED),
}
SECTIONS = tuple(dict.fromkeys(section for section, _ in KINDS))


def fields(name: str) -> dict[str, Any] | None:
    """What describes a metric of these; None for a name of another form."""
    section, who, quantity = _divided(name)
    if (section, quantity) not in KINDS:
        return None
    unit, label, meaning = KINDS[section, quantity]
    return {
        "name": name,
        "label": label.format(who.replace("->", " \u2192 ")),
        "unit": unit,
        "meaning": meaning,
        "absent": "not sampled in this arm's runs",
        "optional": True,
    }


def order(name: str) -> tuple[int, str]:
    """A sort key of these metrics: by quantity, then by name."""
    section, who, quantity = _divided(name)
    return list(KINDS).index((section, quantity)), who


def _divided(name: str) -> tuple[str, str, str]:
    section, _, rest = name.partition(".")
    who, _, quantity = rest.rpartition(".")
    return section, who, quantity
