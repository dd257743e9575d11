"""Rewrites `live.json`, what a run is doing at this moment, a few times a second."""

from __future__ import annotations

import json
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.sampling.flows import FlowSampler
from testbed.sampling.processes import ProcessSampler
from testbed.sampling.queue_reader import DROPS, SENT_BYTES
from testbed.sampling.queues import QueueSampler
from testbed.sampling.tail import Tail
from testbed.shared.unlinked import open_file

LIVE = "live.json"
SCHEMA = 1
INTERVAL_S = 0.25
_LATENCIES = 60


class LiveView:
    """Puts together what the samplers and the run's own logs say."""

    def __init__(
        self,
        directory: Path,
        run: dict[str, Any],
        *,
        queues: QueueSampler,
        flows: FlowSampler,
        processes: ProcessSampler,
    ) -> None:
        self._path = directory / LIVE
        self._temporary = directory / f".{LIVE}"
        self._run = run
        self._queues, self._flows, self._processes = queues, flows, processes
        self._rounds = Tail(directory / "events" / "rounds.jsonl")
        self._impairments = Tail(directory / "events" / "impairments.jsonl")
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._last_round: dict[str, Any] = {}
        self._in_force: dict[str, dict[str, Any]] = {}
        self._before = (time.monotonic(), queues.latest.copy())
        # Calibration has filled the queues on purpose: drops count from the first look.
        self._first_drops: NDArray[np.int64] | None = None
        self._before_processes: dict[str, tuple[float, float, int]] = {}
        self._began_s = time.monotonic()

    def write(self) -> None:
        """Replace the file; OSError when that is not possible."""
        now_s = time.monotonic()
        self._queues.decode()
        for record in self._rounds.records():
            self._last_round = record
            latency_s = record.get("latency_s")
            if isinstance(latency_s, int | float):
                self._latencies.append(round(latency_s, 6))
        for record in self._impairments.records():
            name = str(record.get("name"))
            if record.get("action") == "begin":
                self._in_force[name] = record
            else:
                self._in_force.pop(name, None)
        self._flows.look()
        document = {
            "schema": SCHEMA,
            "t_s": now_s,
            "elapsed_s": now_s - self._began_s,
            "run": self._run,
            "rounds_done": self._last_round.get("round", -1) + 1,
            "critical": self._last_round.get("critical"),
            "latencies_s": list(self._latencies),
            "impairments": [
                {"name": name, "kind": each.get("kind"), "since_s": each.get("acknowledged_s")}
                for name, each in self._in_force.items()
            ],
            "queues": self._queue_rows(now_s),
            "flows": [
                {"host": flow.host, "peer": flow.peer, **state}
                for flow, state in sorted(self._flows.latest.items())
            ],
            "processes": self._process_rows(),
        }
        with open_file(self._temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(document))
        self._temporary.replace(self._path)

    def _queue_rows(self, now_s: float) -> list[dict[str, Any]]:
        queues = self._queues
        before_s, before = self._before
        latest = queues.latest.copy()
        if self._first_drops is None:
            self._first_drops = latest[:, DROPS].copy()
            before = latest
        span_s = max(now_s - before_s, 1e-6)
        rates = ((latest[:, SENT_BYTES] - before[:, SENT_BYTES]) * 8 / span_s).tolist()
        new_drops = (latest[:, DROPS] - before[:, DROPS]).tolist()
        self._before = (now_s, latest)
        columns = (
            queues.ends,
            queues.take_highest().tolist(),
            queues.queue_bytes,
            (latest[:, DROPS] - self._first_drops).tolist(),
            new_drops,
            rates,
            queues.rates_bps,
        )
        return [
            {
                "link": link,
                "from": sender,
                "highest_bytes": highest,
                "queue_bytes": limit,
                "drops": drops,
                "new_drops": new,
                "sent_bps": round(rate),
                "rate_bps": link_rate,
            }
            for (link, sender), highest, limit, drops, new, rate, link_rate in zip(
                *columns, strict=True
            )
        ]

    def _process_rows(self) -> list[dict[str, Any]]:
        latest, before = self._processes.latest, self._before_processes
        rows = []
        for name, (now_s, cpu_s, resident_bytes) in sorted(latest.items()):
            then_s, cpu_then_s, _ = before.get(name, (now_s, cpu_s, 0))
            span_s = now_s - then_s
            share = (cpu_s - cpu_then_s) / span_s if span_s > 0 else None
            rows.append({"name": name, "cpu": share, "rss_bytes": resident_bytes})
        # Shares over about a second: processor time comes in steps of 10 ms.
        oldest_s = min((each[0] for each in before.values()), default=-np.inf)
        newest_s = max((each[0] for each in latest.values()), default=0.0)
        if newest_s - oldest_s > 1.0:
            self._before_processes = dict(latest)
        return rows

    def remove(self) -> None:
        for path in (self._path, self._temporary):
            with suppress(OSError):
                path.unlink(missing_ok=True)
