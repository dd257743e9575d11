"""The gates of the idle network: what was calibrated before training, beside the configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from testbed.verdict.calibration import Calibration, PathCalibration
from testbed.verdict.gate import Gate, compared, not_applicable, not_measured, worst

# Configured loss may cost so many probes by chance: more of them happen once in a million paths.
_CHANCE = 1e-6


def gates(calibration: Calibration, limits: Mapping[str, Any]) -> list[Gate]:
    """Rate and its spread, round trip and idle loss of the paths, and every queue's limit."""
    alike = f"{calibration.left_out} more paths have one like them among those measured"
    note = alike if calibration.left_out else ""

    def of_worst(name: str, key: str, measured: Callable[[PathCalibration], float]) -> Gate:
        value, where = worst((measured(path), _ends(path)) for path in calibration.paths)
        return compared(name, key, value, limits[key], where=where, note=note)

    spread = "spread of the calibrated rate's trials"
    return [
        of_worst("calibrated rate error", "rate_error", _rate_error),
        of_worst(spread, "rate_spread", lambda path: path.rate_spread),
        _round_trip(calibration, limits, note),
        _idle_loss(calibration, limits, note),
        _queues(calibration, limits),
    ]


def socket_gates(
    deepest_bytes: int, all_bytes: int, holds_bytes: int | None, limits: Mapping[str, Any]
) -> list[Gate]:
    """All ports send through one socket: a queue that it cannot hold would never fill."""
    # That all of them fill at once is rare, so more than it can hold of them together is told and
    # does not fail. What it then refuses is lost without a count, and fails the conservation.
    key = "socket_buffer_bytes"
    name = "queue bytes that the switch's socket buffer cannot hold"
    if holds_bytes is None:
        return [not_applicable(name, key, limits[key], "the kernel's datapath sends by no socket")]
    note = (
        f"all queues of the switches together may hold {all_bytes} bytes, and the buffer "
        f"{holds_bytes}: where several are full, another may lose packets that conservation finds"
    )
    value = max(0, deepest_bytes - holds_bytes)
    return [compared(name, key, value, limits[key], note=note if all_bytes > holds_bytes else "")]


def most_lost_by_chance(path: PathCalibration) -> float:
    """The share of a path's probes that its configured loss explains."""
    sent, loss = path.probes_sent, path.configured_probe_loss
    beyond = 1.0
    for lost in range(sent + 1):
        beyond -= math.comb(sent, lost) * loss**lost * (1 - loss) ** (sent - lost)
        if beyond <= _CHANCE:
            return lost / sent
    return 1.0


def _round_trip(calibration: Calibration, limits: Mapping[str, Any], note: str) -> Gate:
    of_ends = {_ends(path): path for path in calibration.paths}
    beyond_s = {
        ends: _rtt_error_s(path) - _rtt_limit(path, limits)[0] for ends, path in of_ends.items()
    }
    _, ends = worst((each, ends) for ends, each in beyond_s.items())
    limit_s, key = _rtt_limit(of_ends[ends], limits)
    return compared(
        "calibrated round-trip time error (s)",
        key,
        _rtt_error_s(of_ends[ends]),
        limit_s,
        where=ends,
        note=note,
    )


def _idle_loss(calibration: Calibration, limits: Mapping[str, Any], note: str) -> Gate:
    lossy = max(calibration.paths, key=lambda path: _lost(path) - most_lost_by_chance(path))
    configured = (
        f"configured loss takes {lossy.configured_probe_loss:.4g} of round trips, and by chance up "
        f"to {most_lost_by_chance(lossy):.4g} of {lossy.probes_sent} probes"
    )
    return compared(
        "probes lost on the idle network",
        "idle_loss",
        _lost(lossy),
        min(1.0, limits["idle_loss"] + most_lost_by_chance(lossy)),
        where=_ends(lossy) if lossy.probes_lost else "",
        note="; ".join(filter(None, (configured if lossy.configured_probe_loss else "", note))),
    )


def _queues(calibration: Calibration, limits: Mapping[str, Any]) -> Gate:
    name, key = "full queue beyond or short of its limit", "queue_error"
    limit = limits[key]
    found = [
        (queue.error, f"{queue.link} from {queue.sender}")
        for queue in calibration.queues
        if queue.error is not None
    ]
    unfilled = [queue for queue in calibration.queues if queue.error is None]
    if not calibration.queues:
        return not_applicable(name, key, limit, "there is no queue")
    missing = ""
    if unfilled:
        first = unfilled[0]
        missing = (
            f"{len(unfilled)} of {len(calibration.queues)} queues not filled, such as {first.link} "
            f"from {first.sender}: {first.reason}"
        )
    if not found:
        return not_measured(name, key, limit, missing)
    value, where = worst(found)
    return compared(name, key, value, limit, where=where, missing=missing)


def _lost(path: PathCalibration) -> float:
    return path.probes_lost / path.probes_sent


def _rate_error(path: PathCalibration) -> float:
    return abs(path.rate_bps / path.configured_rate_bps - 1)


def _rtt_error_s(path: PathCalibration) -> float:
    """How far the median round trip is off, beyond what the links' jitter explains."""
    beyond_s = abs(path.rtt_s - path.configured_rtt_s) - path.rtt_chance_s
    return 0.0 if beyond_s < 0 else beyond_s  # what is not a number stays so


def _rtt_limit(path: PathCalibration, limits: Mapping[str, Any]) -> tuple[float, str]:
    """The limit in seconds and its key: a share of the round trip, or a time if that is more."""
    # For each switch, since each receives a whole frame before it sends it on.
    share_s = limits["rtt_error"] * path.configured_rtt_s
    least_s = limits["rtt_error_s"] * max(1, path.switches)
    return (share_s, "rtt_error") if share_s > least_s else (least_s, "rtt_error_s")


def _ends(path: PathCalibration) -> str:
    return f"{path.sender} to {path.receiver}"
