"""The gates of a run's verdict: was the emulator what it claimed to be?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.lab.calibration import PathCalibration


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One finding: `value` may not exceed `limit`."""

    name: str
    value: float
    limit: float
    passed: bool

    def sentence(self) -> str:
        """The finding in words."""
        return f"{self.name} {self.value:.4g} exceeds {self.limit:g}"

    def as_json(self) -> dict[str, Any]:
        """The record in `status.json`."""
        return asdict(self)


def judge(
    directory: Path,
    config: dict[str, Any],
    paths: Sequence[PathCalibration],
    *,
    switch_holds_bytes: int,
) -> list[Gate]:
    """Check a finished run against the limits of its experiment."""
    limits = config["limits"]
    rate_error = max(abs(path.rate_bps / path.configured_rate_bps - 1) for path in paths)
    lost = sum(path.probes_lost for path in paths)
    late_s = _latest_impairment_s(directory / "events" / "impairments.jsonl")
    # All ports send through one socket: a queue that it cannot hold would never fill.
    shallow = max(0, config["topology"]["queue_bytes"] - switch_holds_bytes)
    return [
        _gate("calibrated rate error", rate_error, limits["rate_error"]),
        _gate("probes lost on the idle network", lost, 0),
        _gate("impairment lateness in seconds", late_s, limits["impairment_late_s"]),
        _gate("queue bytes that the switch's socket buffer cannot hold", shallow, 0),
    ]


def _gate(name: str, value: float, limit: float) -> Gate:
    return Gate(name=name, value=value, limit=limit, passed=value <= limit)


def _latest_impairment_s(events: Path) -> float:
    """The longest time between an impairment's planned and acknowledged begin."""
    if not events.exists():
        return 0.0
    records = [json.loads(line) for line in events.read_text().splitlines()]
    begun = [each for each in records if each["action"] == "begin"]
    return max((each["acknowledged_s"] - each["planned_s"] for each in begun), default=0.0)
