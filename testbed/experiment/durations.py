"""Estimates how long runs take, and how much disk: from earlier runs of the kind, else predicted.

A prediction adds up the lab, the transfers, and the computing, which is measured here for a moment.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import topologies
from testbed.experiment import Run, dimensionless
from testbed.shared import run_directory, sizes
from testbed.shared.input_error import InputError
from testbed.transport import PayloadLayout
from testbed.transport.core import wire
from testbed.transport.policies.repair import REPAIRS, Passes

# Of virtual time, measured on two cores (docs/how-to/simulate.md, kept simulated results): for each
# run, worker, transfer, datagram, and wake-up of what answers batch after batch.
_RUN_S, _WORKER_S, _TRANSFER_S, _DATAGRAM_S, _WAKE_S = 0.3, 0.005, 0.004, 1e-6, 0.0003
_WAKES_HZ = 500
# Of a run's directory, measured on runs of `quick`: what is always there; samples of a link's end,
# a host, and a flow of kernel TCP; 100 notes a second of a sender's congestion control; a round's
# events, and those of a worker in it.
_FIXED_BYTES, _LINK_END_BYTES_PER_S, _HOST_BYTES_PER_S = 45_000, 590, 160
_FLOW_BYTES_PER_S, _NOTE_BYTES, _NOTES_HZ, _ROUND_BYTES, _WORKER_BYTES = 1_500, 230, 100, 550, 1_800
_EVALUATED = 64  # examples
_MEASURED_S = 0.2  # of one kind of step

T = TypeVar("T")
Computing = tuple[float, float]  # a step, and an evaluation, on a processor of its own: seconds


@dataclass(frozen=True, kw_only=True)
class Duration:
    """What one run takes: the mean of `earlier` runs, or a prediction where that is 0."""

    run_s: float | None  # None where nobody can tell: programs without time limits
    disk_bytes: float  # without captures
    earlier: int = 0
    computing: bool = True  # whether the time for it is in it


def of_runs(results: Path, runs: Sequence[Run], say: Callable[[str], None]) -> list[Duration]:
    """Estimate each run; earlier ones below `results` count that differ in the seed alone."""
    earlier = _earlier(results / runs[0].experiment.name)
    known = [earlier.get(_kind(run.config()), []) for run in runs]
    training = [
        run for run, took in zip(runs, known, strict=True) if run.experiment.trains and not took
    ]
    predictions = iter(zip(layouts(training, say), computing(training, say), strict=True))

    def estimate(run: Run, took: list[tuple[float, float]]) -> Duration:
        if took:
            wall_s, size_bytes = map(statistics.fmean, zip(*took, strict=True))
            return Duration(run_s=wall_s, disk_bytes=size_bytes, earlier=len(took))
        if run.experiment.trains:
            return _predicted(run, *next(predictions))
        longest_s = _limit_s(run)
        run_s = None if longest_s is None else longest_s + dimensionless.LAB_S
        return Duration(run_s=run_s, disk_bytes=_samples_bytes(run, longest_s or 0.0))

    return list(map(estimate, runs, known))


def _predicted(run: Run, layout: PayloadLayout, computes: Computing | None) -> Duration:
    computing_s = _computing_s(run, *(computes or (0.0, 0.0)))
    if run.simulated:
        run_s, lab_s, wire_s = _simulated_s(run, layout) + computing_s, 0.0, 0.0
    else:
        given_s = run.experiment.rounds * getattr(run.experiment.training.pace, "compute_s", 0.0)
        lab_s = dimensionless.run_s(run, layout) - dimensionless.LAB_S + computing_s
        run_s, wire_s = lab_s + dimensionless.LAB_S, lab_s - computing_s - given_s
    disk_bytes = _training_bytes(run, 4 * layout.element_count, run_s=lab_s, wire_s=wire_s)
    return Duration(run_s=run_s, disk_bytes=disk_bytes, computing=computes is not None)


def _simulated_s(run: Run, layout: PayloadLayout) -> float:
    """What one processor needs to simulate a run, without what workers learn."""
    workers, rounds = run.experiment.topology.workers, run.experiment.rounds
    datagram_bytes = wire.wire_bytes(1, run.experiment.transport.chunk_bytes)
    datagrams = dimensionless.numbers(run, layout).round_bytes / datagram_bytes
    round_s = 2 * workers * _TRANSFER_S + datagrams * _DATAGRAM_S
    repair = None if run.protocol.carrier == "tcp" else REPAIRS.create(run.protocol.repair)
    if not isinstance(repair, Passes):
        calm_s = dimensionless.communication_s(run, layout)
        round_s += _WAKE_S * min(datagrams, workers * calm_s * _WAKES_HZ)
    return _RUN_S + workers * _WORKER_S + rounds * round_s


def _limit_s(run: Run) -> float | None:
    """What programs take at most, by their time limits."""
    limits_s = [each.time_limit_s for each in run.programs.programs if not each.service]
    return None if None in limits_s else max(filter(None, limits_s))


def _training_bytes(run: Run, payload_bytes: int, *, run_s: float, wire_s: float) -> float:
    workers, rounds = run.experiment.topology.workers, run.experiment.rounds
    sending_bytes = 2 * workers * _FLOW_BYTES_PER_S * run_s
    if run.protocol.carrier == "udp":
        sending_bytes = _NOTE_BYTES * workers * (2 * rounds + _NOTES_HZ * wire_s)
    weights_bytes = workers * payload_bytes * (run.experiment.training.pace.kind != "payload-only")
    events_bytes = rounds * (_ROUND_BYTES + workers * _WORKER_BYTES)
    return _samples_bytes(run, run_s) + sending_bytes + events_bytes + weights_bytes


def _samples_bytes(run: Run, run_s: float) -> float:
    link_ends = 2 * len(topologies.build(run.experiment.topology).link_options())
    hosts = len(run.experiment.working_hosts)
    return _FIXED_BYTES + (_LINK_END_BYTES_PER_S * link_ends + _HOST_BYTES_PER_S * hosts) * run_s


def training_s(run: Run) -> float | None:
    """About how long the workload of a run goes on, computing left out; None: nobody can tell."""
    if not run.experiment.trains:
        return _limit_s(run)
    (layout,) = layouts([run], lambda _: None)
    return dimensionless.run_s(run, layout) - dimensionless.LAB_S


def layouts(runs: Iterable[Run], say: Callable[[str], None]) -> list[PayloadLayout]:
    """The payload of each run."""

    def layout(run: Run) -> PayloadLayout:
        say(f"reading the layers of {run.experiment.training.model}")
        return dimensionless.layout_of(run)

    return _once(runs, ("model", "dataset", "pace"), layout)


def computing(runs: Iterable[Run], say: Callable[[str], None]) -> list[Computing | None]:
    """What a worker of each run needs here, measured; None: its data are not here, or unfit."""

    def measured(run: Run) -> Computing | None:
        if run.experiment.training.pace.kind == "payload-only":
            return 0.0, 0.0
        say(f"measuring how long {run.experiment.training.model} computes")
        return _measured_apart(run)

    keys = ("model", "dataset", "pace", "optimiser", "batch_size", "device")
    return _once(runs, keys, measured)


def _once(runs: Iterable[Run], keys: Sequence[str], work: Callable[[Run], T]) -> list[T]:
    """What work finds for each run, done once for all whose training is equal in some keys."""
    made: dict[str, T] = {}

    def of(run: Run) -> T:
        training = run.experiment.training.model_dump(mode="json", include=set(keys))
        shared = (run.experiment.transport.chunk_bytes, run.experiment.topology.workers)
        kind = json.dumps([training, shared, str(run.folder)])
        if kind not in made:
            made[kind] = work(run)
        return made[kind]

    return list(map(of, runs))


def _computing_s(run: Run, step_s: float, evaluation_s: float) -> float:
    """All steps and evaluations of a run; steps as far as they exceed a time that is given."""
    training, workers = run.experiment.training, run.experiment.topology.workers
    crowd, given_s = float(workers), 0.0  # simulated, they compute one after another
    if not run.simulated:
        crowd = max(1.0, workers / (os.cpu_count() or 1))
        given_s = getattr(training.pace, "compute_s", 0.0)
    evaluations = -(-run.experiment.rounds // training.evaluate_every) + 1
    steps_s = run.experiment.rounds * max(0.0, step_s * crowd - given_s)
    return steps_s + evaluations * evaluation_s * crowd


def _measured_apart(run: Run) -> Computing | None:
    """As `_measured`, in a fork: runs that this process forks begin before torch has computed."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(writing, json.dumps(_measured(run)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        measured = json.loads(pipe.read() or "null")
    os.waitpid(child, 0)
    return measured and (measured[0], measured[1])


def _measured(run: Run) -> Computing | None:
    import torch

    from testbed.training.run_context import RunContext

    torch.set_num_threads(1)  # as in a run
    context = RunContext.without_network(run.config(), run.experiment.topology.host_names())
    try:
        data = context.model_and_data.dataset
        learner = context.learner(context.workers[0])
        update = np.zeros(context.layout.element_count, dtype=np.float32)

        def step() -> None:
            learner.gradient(update)
            learner.apply(update, 0.0)

        inputs, labels = data.test_inputs[:_EVALUATED], data.test_labels[:_EVALUATED]
        model = context.model_and_data.model(0)
        step_s = _shortest_s(step)
        some_s = _shortest_s(lambda: data.task.evaluate(model, inputs, labels))
    except InputError:
        return None
    return step_s, some_s * len(data.test_labels) / len(labels)


def _shortest_s(work: Callable[[], object]) -> float:
    """The shortest of several tries; the first one warms up, unless it takes long."""
    times_s = [time.monotonic()]
    while len(times_s) < 9 and times_s[-1] - times_s[0] < _MEASURED_S:
        work()
        times_s.append(time.monotonic())
    return float(np.diff(times_s).min())


def total(durations: Sequence[Duration], *, at_once: int = 1) -> str:
    """Say in one sentence how long all of them take, so many at once, and how much disk."""
    known = [each for each in durations if each.run_s is not None]
    runs_s = [each.run_s or 0.0 for each in known]
    runs = "1 run" if len(durations) == 1 else f"{len(durations)} runs"
    if not known:
        return f"{runs} to do; how long is unknown: no time_limit_s is given"
    about = in_words(max(sum(runs_s) / at_once, *runs_s))
    if len(known) < len(durations):
        about += f" for {len(known)} of them (unknown where no time_limit_s is given)"
    disk = sizes.in_words(sum(each.disk_bytes for each in known))
    earlier = sum(each.earlier > 0 for each in durations)
    counts = {"from earlier runs": earlier, "predicted": len(known) - earlier}
    sources = ", ".join(f"{count} {source}" for source, count in counts.items() if count > 0)
    return f"{runs} to do, about {about} and {disk} on disk ({sources})"


def in_words(duration_s: float | None) -> str:
    """A duration with the two digits that an estimate deserves."""
    if duration_s is None:
        return "unknown"
    if duration_s < 90:
        return f"{duration_s:.0f} s"
    return f"{duration_s / 60:.0f} min" if duration_s < 7200 else f"{duration_s / 3600:.3g} h"


def _earlier(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Kind of run -> wall time in seconds and size in bytes of those that ran to their end."""
    took: dict[str, list[tuple[float, float]]] = {}
    for path in sorted(folder.glob("*/status.json")):
        status = run_directory.read_or_empty(path)  # the report tells of damaged directories
        config = run_directory.read_or_empty(path.with_name("config.json"))
        if config and status.get("verdict") in ("ok", "invalid") and status.get("wall_s"):
            size_bytes = sizes.bytes_below(path.parent)
            took.setdefault(_kind(config), []).append((float(status["wall_s"]), float(size_bytes)))
    return took


def _kind(config: dict[str, Any]) -> str:
    """The configuration without the seed and what is drawn from it: equal for equal durations."""
    drawn = ("seed", "key", "impairments", "schema", "folder", "profile", "capture", "limits")
    return json.dumps({key: config[key] for key in config if key not in drawn}, sort_keys=True)
