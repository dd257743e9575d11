"""Samples a run's queues, flows and processes in a process of its own, on one monotonic clock.

It fills `samples/` of the run directory, and `live.json` 4 times a second. One that fails does not
fail the run.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.lab.helpers.process import HelperError, HelperProcess, Requests
from testbed.lab.kernel.commands import CommandError
from testbed.shared import python_module, run_directory
from testbed.verdict.flows import FlowSampler, Tail
from testbed.verdict.processes import ProcessSampler
from testbed.verdict.queues import DROPS, SENT_BYTES, QueueSampler
from testbed.verdict.store import CHUNKS

_SCHEMA = 1  # of both documents
_LIVE_INTERVAL_S = 0.25
_LATENCIES = 60


class _LiveView:
    def __init__(
        self,
        directory: Path,
        run: dict[str, Any],
        *,
        queues: QueueSampler,
        flows: FlowSampler,
        processes: ProcessSampler,
    ) -> None:
        self._path = directory / "live.json"
        self._run = run
        self._queues, self._flows, self._processes = queues, flows, processes
        self._rounds = Tail(directory / "events" / "rounds.jsonl")
        self._impairments = Tail(directory / "events" / "impairments.jsonl")
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._last_round: dict[str, Any] = {}
        self._in_force: dict[str, dict[str, Any]] = {}
        self._before = (time.monotonic(), queues.latest.copy())
        # Calibration has filled the queues on purpose: drops count from the first reading.
        self._first_drops: NDArray[np.int64] | None = None
        self._before_processes: dict[str, tuple[float, float, int]] = {}
        self._began_s = time.monotonic()

    def write(self) -> None:
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
        self._flows.read_logs()
        impairments = [
            {"name": name, "kind": record.get("kind"), "since_s": record.get("acknowledged_s")}
            for name, record in self._in_force.items()
        ]
        flows = [
            {"host": flow.host, "peer": flow.peer, **state}
            for flow, state in sorted(self._flows.latest.items())
        ]
        document = {
            "schema": _SCHEMA,
            "t_s": now_s,
            "elapsed_s": now_s - self._began_s,
            "run": self._run,
            "rounds_done": self._last_round.get("round", -1) + 1,
            "critical": self._last_round.get("critical"),
            "latencies_s": list(self._latencies),
            "impairments": impairments,
            "queues": self._queue_rows(now_s),
            "flows": flows,
            "processes": self._process_rows(),
        }
        run_directory.write_text(self._path, json.dumps(document))

    def _queue_rows(self, now_s: float) -> list[dict[str, Any]]:
        queues = self._queues
        before_s, before = self._before
        latest = queues.latest.copy()
        if self._first_drops is None:
            self._first_drops = latest[:, DROPS].copy()
            before = latest
        span_s = max(now_s - before_s, 1e-6)
        self._before = (now_s, latest)
        columns = {
            "highest_bytes": queues.take_highest(),
            "drops": latest[:, DROPS] - self._first_drops,
            "new_drops": latest[:, DROPS] - before[:, DROPS],
            "sent_bps": np.rint((latest[:, SENT_BYTES] - before[:, SENT_BYTES]) * 8 / span_s),
        }
        return [
            end | {name: int(column[row]) for name, column in columns.items()}
            for row, end in enumerate(queues.ends)
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
        oldest_s = min((at_s for at_s, *_ in before.values()), default=-np.inf)
        newest_s = max((at_s for at_s, *_ in latest.values()), default=0.0)
        if newest_s - oldest_s > 1.0:
            self._before_processes = dict(latest)
        return rows

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


RATE_HZ = 100.0
# The kernel takes 4 microseconds for each end of a link. With more links, samples come less often,
# so that they cost the same.
_FULL_RATE_LINKS = 64


class Sampler:
    def __init__(self, directory: Path, order: dict[str, Any]) -> None:
        self._directory = directory
        self._folder = directory / "samples"
        self._folder.mkdir(exist_ok=True)
        self._rate_hz = RATE_HZ * min(1.0, _FULL_RATE_LINKS / max(1, len(order["links"])))
        hosts = order["hosts"]
        self._queues = QueueSampler(self._folder, order["links"], self._rate_hz)
        self._flows = FlowSampler(self._folder, hosts, order["flows"], directory / "events")
        self._processes = ProcessSampler(self._folder, hosts, order["processes"])
        self._samplers: dict[str, Any] = {
            "queues": self._queues,
            "flows": self._flows,
            "processes": self._processes,
        }
        self._live = _LiveView(directory, order["run"], **self._samplers)
        self._live_s = 0.0
        self._parts: dict[str, Callable[[int], object]] = {
            name: sampler.sample for name, sampler in self._samplers.items()
        }
        self._parts["live"] = self._show
        self._errors: dict[str, dict[str, Any]] = {name: {"errors": 0} for name in self._parts}
        self._ticks = 0
        self._lost = 0
        self._largest_gap_s = 0.0

    def run(
        self,
        stop: threading.Event,
        requests: SimpleQueue[dict[str, Any]],
        reply: Callable[[dict[str, Any], list[str]], object],
    ) -> None:
        period_s = 1 / self._rate_hz
        began_s = next_s = last_s = time.monotonic()
        began_cpu_s = time.process_time()
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
            for name, sample in self._parts.items():
                try:
                    sample(self._ticks)
                except OSError as error:  # an interface or a disk may be gone; the rest goes on
                    errors = self._errors[name]["errors"] + 1
                    self._errors[name] = {"errors": errors, "last_error": str(error)}
            self._ticks += 1
            if not requests.empty():
                reply(requests.get(), self._write(last=False))
        ended_s, cpu_s = time.monotonic(), time.process_time() - began_cpu_s
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
        problems = []
        for name, sampler in self._samplers.items():
            try:
                sampler.write(self._folder / f"{name}.parquet", last=last)
            except Exception as error:  # one broken table must not take the others with it
                problems.append(f"{name}: {type(error).__name__}: {error}")
                print(problems[-1], file=sys.stderr)
        return problems

    def _finish(self, began_s: float, ended_s: float, cpu_s: float) -> None:
        problems = self._write(last=True)
        if not problems:
            (self._folder / CHUNKS).rmdir()
        elapsed_s = max(ended_s - began_s, 1e-9)
        run_directory.write_json(
            self._folder / "sampler.json",
            {
                "schema": _SCHEMA,
                "began_s": began_s,
                "ended_s": ended_s,
                "asked_hz": self._rate_hz,
                "reached_hz": self._ticks / elapsed_s,
                "directed_links": self._queues.ends,
                "ticks": self._ticks,
                "samples_lost": self._lost,
                "answers_left_out": self._queues.left_out,
                "answers_too_late": self._queues.stale_answers + self._flows.stale_answers,
                "largest_gap_s": self._largest_gap_s,
                "cpu_s": cpu_s,
                "cpu_share": cpu_s / elapsed_s,
                "rows": {name: one.table.rows for name, one in self._samplers.items()},
                "parts": self._errors,
                "congestion_controls": self._flows.congestion_controls(),
                "problems": problems,
            },
        )


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
    waiting: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def listen() -> None:
        while (request := requests.wait()) is not None:
            importlib.import_module("polars")  # takes a while, in which sampling goes on
            waiting.put(request)
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    sampler = Sampler(Path(sys.argv[1]), order)
    requests.say({"ready": True})  # the training may begin
    sampler.run(
        stop, waiting, lambda request, problems: requests.answer(request, {"problems": problems})
    )


# For the process that starts it

# Writing the files of an hour's run takes a few seconds.
_TIMEOUT_S = 60.0


class RunningSampler:
    def __init__(self, helper: HelperProcess) -> None:
        self._helper = helper
        self._begun = False

    @property
    def pid(self) -> int:
        return self._helper.pid

    def wait(self) -> None:
        if not self._begun:
            self._helper.receive()
            self._begun = True

    def write(self) -> None:
        try:
            self.wait()
            problems = list(self._helper.ask(_TIMEOUT_S, do="write")["problems"])
        except HelperError as error:
            problems = [str(error)]
        if problems:
            raise CommandError(f"no samples: {'; '.join(problems)}")


@contextmanager
def sampled(
    directory: Path,
    order: Mapping[str, Any],
    *,
    first: Callable[[], object] = bool,
    from_begin: bool = True,
) -> Iterator[RunningSampler]:
    """Sample for the duration of the body; all files are complete when this returns."""
    # `first` is called before anything is sampled; the body waits for the sampler `from_begin`.
    with run_directory.open_file(directory / "logs" / "sampler.log", "ab") as log:
        helper = HelperProcess(
            python_module.command("testbed.verdict.sampler", str(directory)),
            name="sampler",
            stderr=log,
            # numpy's threads would only take memory here.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
        ).start()
    try:
        sampler = RunningSampler(helper)
        first()
        with suppress(HelperError):  # its log says why; a sampler that fails costs no run
            helper.send(**order)
            if from_begin:
                sampler.wait()
        yield sampler
    finally:
        helper.finish(_TIMEOUT_S)


if __name__ == "__main__":
    main()
