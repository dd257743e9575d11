"""The gates of a run's verdict: each compares one measured value of the emulator with a limit.

The limits come from the experiment file. A gate whose value could not be measured does not pass
silently: the gate says so, and so does the run's status.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.verdict.calibration import Calibration, PathCalibration
from testbed.verdict.conservation import Conservation
from testbed.verdict.processor_headroom import Headroom

# Configured loss may cost so many probes by chance: more of them happen once in a million paths.
_CHANCE = 1e-6
# With fewer values there is no 99th percentile: the maximum counts.
_LEAST_FOR_P99 = 100


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One finding: `value` may not exceed `limit`.

    Attributes:
        name: in words, with the unit.
        key: the key of `limits` that sets the limit; empty: the limit is fixed.
        value: the worst that was measured; None: it could not be measured.
        passed: None if there is no value.
        where: the link, path, process or impairment that it is about.
        note: why there is no value, or what the value leaves out.
    """

    name: str
    key: str
    value: float | None
    limit: float
    passed: bool | None
    where: str = ""
    note: str = ""

    def sentence(self) -> str:
        if self.value is None:
            return f"{self.name} not checked: {self.note}"
        place = f" ({self.where})" if self.where else ""
        return f"{self.name} {self.value:.4g}{place} exceeds {self.limit:g}"

    def as_json(self) -> dict[str, Any]:
        """The record in `status.json`."""
        return asdict(self)


def judge(
    config: Mapping[str, Any],
    calibration: Calibration,
    conservation: Conservation | None,
    headroom: Headroom,
    events: Sequence[Mapping[str, Any]],
    *,
    deepest_queue_bytes: int,
    switch_holds_bytes: int,
    unreadable: str = "",
    other_programs: str = "",
) -> list[Gate]:
    """Check a finished run against the limits of its experiment.

    Args:
        conservation: None where the counters could not be read; `unreadable` says why.
        other_programs: those outside the lab that used most of the processors, in words.
    """
    limits = config["limits"]
    # All ports send through one socket: a queue that it cannot hold would never fill.
    shallow = max(0, deepest_queue_bytes - switch_holds_bytes)
    others = headroom.contended
    return [
        *_calibrated(calibration, limits),
        _gate("queue bytes that the switch's socket buffer cannot hold", "", shallow, 0),
        _conserved(conservation, limits, unreadable),
        _cpu(headroom, limits),
        _gate(
            "share of the processors' time that others took",
            "cpu_others",
            others,
            limits["cpu_others"],
            where=other_programs,
            note="/proc/stat cannot be read" if others is None else "",
        ),
        _lateness(events, limits),
        _gate(
            "longest time that nothing ran (s)",
            "clock_stall_s",
            headroom.stall_s,
            limits["clock_stall_s"],
        ),
        _gate("drift of the clock", "clock_drift", headroom.drift, limits["clock_drift"]),
    ]


def reasons(gates: Sequence[Gate]) -> str:
    """The gates that did not pass, else those that could not be checked, for `status.json`."""
    broken = [gate.sentence() for gate in gates if gate.passed is False]
    return "; ".join(broken or [gate.sentence() for gate in gates if gate.passed is None])


def read_events(path: Path) -> list[dict[str, Any]]:
    """The records of `events/impairments.jsonl`; none where there is no such file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _gate(
    name: str, key: str, value: float | None, limit: float, *, where: str = "", note: str = ""
) -> Gate:
    passed = None if value is None else value <= limit
    return Gate(name=name, key=key, value=value, limit=limit, passed=passed, where=where, note=note)


def _calibrated(calibration: Calibration, limits: Mapping[str, Any]) -> list[Gate]:
    paths = calibration.paths
    left_out = f"{calibration.left_out} paths like these not measured"
    note = left_out if calibration.left_out else ""
    off = max(paths, key=_rate_error)
    slow = max(paths, key=lambda path: _rtt_error_s(path) - _rtt_limit(path, limits)[0])
    rtt_limit_s, rtt_key = _rtt_limit(slow, limits)
    lossy = max(paths, key=lambda path: _lost(path) - most_lost_by_chance(path))
    configured = (
        f"configured loss takes {lossy.configured_probe_loss:.4g} of round trips, and by chance up "
        f"to {most_lost_by_chance(lossy):.4g} of {lossy.probes_sent} probes"
    )
    return [
        _gate(
            "calibrated rate error",
            "rate_error",
            _rate_error(off),
            limits["rate_error"],
            where=_ends(off),
            note=note,
        ),
        _gate(
            "calibrated round-trip time error (s)",
            rtt_key,
            _rtt_error_s(slow),
            rtt_limit_s,
            where=_ends(slow),
            note=note,
        ),
        _gate(
            "probes lost on the idle network",
            "idle_loss",
            _lost(lossy),
            min(1.0, limits["idle_loss"] + most_lost_by_chance(lossy)),
            where=_ends(lossy) if lossy.probes_lost else "",
            note="; ".join(filter(None, (configured if lossy.configured_probe_loss else "", note))),
        ),
        _queues(calibration, limits),
    ]


def most_lost_by_chance(path: PathCalibration) -> float:
    """The share of a path's probes that its configured loss explains.

    More are lost with a probability of at most 1e-6, by the binomial distribution. A probe is lost
    on its way there or back.
    """
    sent, loss = path.probes_sent, path.configured_probe_loss
    beyond = 1.0
    for lost in range(sent + 1):
        beyond -= math.comb(sent, lost) * loss**lost * (1 - loss) ** (sent - lost)
        if beyond <= _CHANCE:
            return lost / sent
    return 1.0


def _lost(path: PathCalibration) -> float:
    return path.probes_lost / path.probes_sent


def _rate_error(path: PathCalibration) -> float:
    return abs(path.rate_bps / path.configured_rate_bps - 1)


def _rtt_error_s(path: PathCalibration) -> float:
    return abs(path.rtt_s - path.configured_rtt_s)


def _rtt_limit(path: PathCalibration, limits: Mapping[str, Any]) -> tuple[float, str]:
    """The limit in seconds, and its key: a share of the round trip, or a time where that is more.

    The time is for each switch, since each receives a whole frame before it sends it on.
    """
    share_s = limits["rtt_error"] * path.configured_rtt_s
    least_s = limits["rtt_error_s"] * max(1, path.switches)
    return (share_s, "rtt_error") if share_s > least_s else (least_s, "rtt_error_s")


def _ends(path: PathCalibration) -> str:
    return f"{path.sender} to {path.receiver}"


def _queues(calibration: Calibration, limits: Mapping[str, Any]) -> Gate:
    measured = [queue for queue in calibration.queues if queue.error is not None]
    unmeasured = [queue for queue in calibration.queues if queue.error is None]
    note = ""
    if unmeasured:
        first = unmeasured[0]
        note = f"{len(unmeasured)} of {len(calibration.queues)} queues not filled: {first.reason}"
    worst = max(measured, key=lambda queue: queue.error or 0.0, default=None)
    return _gate(
        "full queue beyond or short of its limit",
        "queue_error",
        worst.error if worst else None,
        limits["queue_error"],
        where=f"{worst.link} from {worst.sender}" if worst else "",
        note=note or ("" if worst else "there is no queue"),
    )


def _conserved(
    conservation: Conservation | None, limits: Mapping[str, Any], unreadable: str
) -> Gate:
    name, key, limit = "unexplained share of packets", "conservation", limits["conservation"]
    if conservation is None:
        return _gate(name, key, None, limit, note=f"no counters: {unreadable}")
    if not conservation.quiet:
        return _gate(name, key, None, limit, note="packets were still moving after the training")
    value, where = conservation.worst()
    left_out = [each for each in conservation.switches if each.reason]
    note = f"switch {left_out[0].switch}: {left_out[0].reason}" if left_out else ""
    return _gate(name, key, value, limit, where=where if value else "", note=note)


def _cpu(headroom: Headroom, limits: Mapping[str, Any]) -> Gate:
    known = {name: share for name, share in headroom.waited.items() if share is not None}
    gone = [name for name, share in headroom.waited.items() if share is None]
    note = f"no scheduling statistics of {', '.join(gone)}" if gone else ""
    worst = max(known, key=lambda name: known[name], default="")
    return _gate(
        "share of the time that the emulator waited for a processor",
        "cpu_wait",
        known.get(worst),
        limits["cpu_wait"],
        where=worst,
        note=note,
    )


def _lateness(events: Sequence[Mapping[str, Any]], limits: Mapping[str, Any]) -> Gate:
    """The lateness of begins and ends: the 99th percentile, or the maximum if there are few."""
    late = sorted(
        (each["acknowledged_s"] - each["planned_s"], f"{each.get('name')} {each['action']}")
        for each in events
        if each.get("action") in ("begin", "end") and each.get("acknowledged_s") is not None
    )
    many = len(late) >= _LEAST_FOR_P99
    rank = math.ceil(0.99 * len(late)) - 1 if many else len(late) - 1
    value, where = late[rank] if late else (0.0, "")
    return _gate(
        "impairment lateness, p99 (s)" if many else "impairment lateness (s)",
        "impairment_late_s",
        value,
        limits["impairment_late_s"],
        where=where,
        note="" if late else "no impairment began",
    )
