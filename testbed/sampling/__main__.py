"""`python -m testbed.sampling RUN_DIRECTORY`: a helper process whose first request is its order."""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.lab.helpers.process import Requests, say
from testbed.sampling import processes
from testbed.sampling.flows import FlowSampler, Tail
from testbed.sampling.processes import ProcessSampler
from testbed.sampling.queue_reader import DROPS, SENT_BYTES
from testbed.sampling.queues import QueueSampler
from testbed.sampling.store import CHUNKS
from testbed.shared import run_directory
from testbed.shared.unlinked import open_file

_LIVE = "live.json"
_SCHEMA = 1  # of both documents
_LIVE_INTERVAL_S = 0.25
_LATENCIES = 60


class _LiveView:
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
        self._path = directory / _LIVE
        self._temporary = directory / f".{_LIVE}"
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
            "schema": _SCHEMA,
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
        sent_bps = (latest[:, SENT_BYTES] - before[:, SENT_BYTES]) * 8 / span_s
        drops, new_drops = latest[:, DROPS] - self._first_drops, latest[:, DROPS] - before[:, DROPS]
        highest_bytes = queues.take_highest()
        self._before = (now_s, latest)
        return [
            {
                "link": link,
                "from": sender,
                "highest_bytes": int(highest_bytes[row]),
                "queue_bytes": queues.queue_bytes[row],
                "drops": int(drops[row]),
                "new_drops": int(new_drops[row]),
                "sent_bps": round(float(sent_bps[row])),
                "rate_bps": queues.rates_bps[row],
            }
            for row, (link, sender) in enumerate(queues.ends)
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


RATE_HZ = 100.0
# The kernel takes 4 microseconds for each end of a link. With more links, samples come less often,
# so that they cost the same.
_FULL_RATE_LINKS = 64
# Cost is measured at one tick in so many, since the clock costs as much as a read. The number is a
# prime, so that work done at every 10th or 25th tick is measured in proportion.
_MEASURED_EVERY = 17


class _Part:
    """One thing that is sampled, with its cost and its errors."""

    def __init__(self, sample: Callable[[int], object]) -> None:
        self.sample = sample
        self.errors = 0
        self.last_error = ""
        self.measured_s = 0.0
        self.measured = 0

    def run(self, tick: int, *, measured: bool) -> None:
        began_s = time.thread_time() if measured else 0.0
        try:
            self.sample(tick)
        except OSError as error:  # an interface or a disk may be gone; the rest goes on
            self.errors += 1
            self.last_error = str(error)
        if measured:
            self.measured_s += time.thread_time() - began_s
            self.measured += 1

    def as_json(self) -> dict[str, Any]:
        cost_s = self.measured_s / self.measured if self.measured else None
        error = {"last_error": self.last_error} if self.errors else {}
        return {"cpu_s_per_tick": cost_s, "errors": self.errors, **error}


class Sampler:
    """Samples one lab from `run` on."""

    def __init__(
        self, directory: Path, order: dict[str, Any], *, rate_hz: float | None = None
    ) -> None:
        self._directory = directory
        self._folder = directory / "samples"
        self._folder.mkdir(exist_ok=True)
        rate_hz = self._rate_hz = rate_hz or (
            RATE_HZ * min(1.0, _FULL_RATE_LINKS / max(1, len(order["links"])))
        )
        hosts = order["hosts"]
        self._queues = QueueSampler(self._folder, order["links"], rate_hz)
        self._flows = FlowSampler(self._folder, hosts, order["flows"], directory / "events")
        self._processes = ProcessSampler(self._folder, hosts, order["processes"])
        self._samplers: dict[str, Any] = {
            "queues": self._queues,
            "flows": self._flows,
            "processes": self._processes,
        }
        self._live = _LiveView(directory, order["run"], **self._samplers)
        self._live_s = 0.0
        self._parts = {
            "queues": _Part(self._queues.sample),
            "flows": _Part(self._flows.sample),
            "processes": _Part(lambda _: self._processes.sample()),
            "live": _Part(self._show),
        }
        self._ticks = 0
        self._lost = 0
        self._largest_gap_s = 0.0

    def run(
        self,
        stop: threading.Event,
        asked: SimpleQueue[int] | None = None,
        written: Callable[[int, list[str]], object] = lambda number, problems: None,
    ) -> None:
        """Sample until `stop` is set, then write all files."""
        period_s = 1 / self._rate_hz
        began_s = next_s = last_s = time.monotonic()
        began_cpu_s = _cpu_s()
        while not stop.is_set():
            # Cheaper than waiting for the event, which is then noticed up to one tick later.
            time.sleep(max(0.0, next_s - time.monotonic()))
            now_s = time.monotonic()
            self._largest_gap_s = max(self._largest_gap_s, now_s - last_s)
            late = int((now_s - next_s) / period_s)
            if late > 0:
                self._lost += late
                next_s += late * period_s
            last_s, next_s = now_s, next_s + period_s
            measured = self._ticks % _MEASURED_EVERY == 0
            for part in self._parts.values():
                part.run(self._ticks, measured=measured)
            self._ticks += 1
            if asked is not None and not asked.empty():
                written(asked.get(), self._write(last=False))
        ended_s, cpu_s = time.monotonic(), _cpu_s() - began_cpu_s
        self._largest_gap_s = max(self._largest_gap_s, ended_s - last_s)
        self._finish(began_s, ended_s, cpu_s)
        # Last: a sampler that is killed before all is written leaves the latest view.
        self._live.remove()

    def _show(self, tick: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._live_s:
            self._live_s = now_s + _LIVE_INTERVAL_S
            self._live.write()

    def _write(self, *, last: bool) -> list[str]:
        """Write the files of all tables; returns what went wrong."""
        problems = []
        for name, each in self._samplers.items():
            try:
                each.write(self._folder / f"{name}.parquet", last=last)
            except Exception as error:  # one broken table must not take the others with it
                problems.append(f"{name}: {type(error).__name__}: {error}")
                print(problems[-1], file=sys.stderr)
        return problems

    def _finish(self, began_s: float, ended_s: float, cpu_s: float) -> None:
        problems = self._write(last=True)
        if not problems:
            (self._folder / CHUNKS).rmdir()
        elapsed_s = max(ended_s - began_s, 1e-9)
        reached_hz = self._ticks / elapsed_s
        run_directory.write_json(
            self._folder / "sampler.json",
            {
                "schema": _SCHEMA,
                "began_s": began_s,
                "ended_s": ended_s,
                "asked_hz": self._rate_hz,
                "reached_hz": reached_hz,
                "rates_hz": {
                    "switch_queues": reached_hz,
                    "server_queue": reached_hz,
                    "worker_queues": reached_hz / self._queues.turns,
                    "tcp_flows": reached_hz / self._flows.turns,
                    "processes": 1 / processes.INTERVAL_S,
                },
                "directed_links": [
                    {"link": link, "from": sender, "queue_bytes": limit, "rate_bps": rate}
                    for (link, sender), limit, rate in zip(
                        self._queues.ends,
                        self._queues.queue_bytes,
                        self._queues.rates_bps,
                        strict=True,
                    )
                ],
                "ticks": self._ticks,
                "samples_lost": self._lost,
                "answers_left_out": self._queues.left_out,
                "answers_too_late": self._queues.strangers + self._flows.strangers,
                "largest_gap_s": self._largest_gap_s,
                "cpu_s": cpu_s,
                "cpu_share": cpu_s / elapsed_s,
                "rows": {name: each.table.rows for name, each in self._samplers.items()},
                "parts": {name: part.as_json() for name, part in self._parts.items()},
                "congestion_controls": self._flows.congestion_controls(),
                "stopped": self._processes.stopped,
                "problems": problems,
            },
        )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# It sleeps nearly always; when it wakes up, a sample is due.
_NICE = -10


def main() -> None:
    """Sample until the input ends; each further request is to write what there is."""
    requests = Requests()
    order = requests.wait()
    if order is None:
        sys.exit(1)
    with suppress(OSError):  # an ordinary user may not
        os.nice(_NICE)
    gc.disable()  # nothing here makes cycles, and a collection would be a gap
    stop = threading.Event()
    asked: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_listen, args=[requests, stop, asked], daemon=True).start()
    sampler = Sampler(Path(sys.argv[1]), order)
    say({"ready": True})  # the training may begin
    sampler.run(stop, asked, lambda number, problems: say({"number": number, "problems": problems}))


def _listen(requests: Requests, stop: threading.Event, asked: SimpleQueue[int]) -> None:
    while (request := requests.wait()) is not None:
        importlib.import_module("polars")  # takes a while, in which sampling goes on
        asked.put(request["number"])
    stop.set()


if __name__ == "__main__":
    main()
