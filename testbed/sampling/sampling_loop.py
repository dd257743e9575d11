"""The sampler's loop, and `sampler.json`, in which it says what it did and what it cost."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from testbed.sampling import live, processes
from testbed.sampling.flows import FlowSampler
from testbed.sampling.live import LiveView
from testbed.sampling.processes import ProcessSampler
from testbed.sampling.queues import QueueSampler
from testbed.sampling.store import CHUNKS
from testbed.shared import run_directory

SCHEMA = 1
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


def rate_for(links: int) -> float:
    """How many times a second a lab of so many links is sampled."""
    return RATE_HZ * min(1.0, _FULL_RATE_LINKS / max(1, links))


class Sampler:
    """Samples one lab from `run` on.

    Args:
        directory: the run directory.
        order: what `sampling.order_of` made.
        rate_hz: None: what suits its number of links.
    """

    def __init__(
        self, directory: Path, order: dict[str, Any], *, rate_hz: float | None = None
    ) -> None:
        self._directory = directory
        self._folder = directory / "samples"
        self._folder.mkdir(exist_ok=True)
        rate_hz = self._rate_hz = rate_hz or rate_for(len(order["links"]))
        hosts = order["hosts"]
        self._queues = QueueSampler(self._folder, order["links"], rate_hz)
        self._flows = FlowSampler(
            self._folder,
            hosts,
            order["flows"],
            directory / "events",
        )
        self._processes = ProcessSampler(self._folder, hosts, order["processes"])
        self._samplers: dict[str, Any] = {
            "queues": self._queues,
            "flows": self._flows,
            "processes": self._processes,
        }
        self._live = LiveView(directory, order["run"], **self._samplers)
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
        """Sample until `stop` is set, then write all files.

        Args:
            asked: numbers of requests to write the samples so far.
            written: called then, with the request's number and what went wrong.
        """
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
            self._live_s = now_s + live.INTERVAL_S
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
                "schema": SCHEMA,
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
