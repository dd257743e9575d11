"""Estimates how much disk space a run directory takes, without captures.

Sizes of files were measured on runs of `quick`; what grows is counted: samples with time and links,
events with rounds, workers and time on the wire, weights with the model.
"""

from __future__ import annotations

from pathlib import Path

import topologies
from testbed.experiment import Run
from testbed.shared import sizes

_FIXED_BYTES = 45_000  # configuration, manifest, verdict, logs
_PER_LINK_END_BYTES_PER_S = 590  # samples/queues.parquet: 100 Hz, 5.9 bytes a row
_PER_HOST_BYTES_PER_S = 160  # samples/processes.parquet
_PER_FLOW_BYTES_PER_S = 1_500  # samples/flows.parquet, kernel TCP only
_PER_OBSERVATION_BYTES = 230  # events/congestion-*.jsonl: our transport only, 100 Hz while it sends
_OBSERVED_HZ = 100
_PER_ROUND_BYTES = 550  # events/rounds.jsonl
_PER_ROUND_AND_WORKER_BYTES = 1_800  # events/transfers-*.jsonl, training-*.jsonl
_CHECKPOINT_PAYLOADS = 5  # model, optimiser, and the buffers of both sides, of each worker


def predicted_bytes(run: Run, *, payload_bytes: int, run_s: float, wire_s: float) -> float:
    """The size of a finished run's directory.

    Args:
        run: what is executed.
        payload_bytes: of one transfer, which is the size of a worker's weights.
        run_s: how long the run takes.
        wire_s: how long transfers go on, of all rounds together.
    """
    experiment = run.experiment
    workers, rounds = experiment.topology.workers, experiment.rounds
    if run.protocol.carrier == "udp":
        observed = workers * (2 * rounds + _OBSERVED_HZ * wire_s)
        sending_bytes = _PER_OBSERVATION_BYTES * observed
    else:
        sending_bytes = 2 * workers * _PER_FLOW_BYTES_PER_S * run_s
    training = experiment.training
    kept = workers * payload_bytes * (training.pace.kind != "payload-only")
    if training.checkpoint_every:
        kept += _CHECKPOINT_PAYLOADS * workers * payload_bytes
    events = rounds * (_PER_ROUND_BYTES + workers * _PER_ROUND_AND_WORKER_BYTES)
    return samples_bytes(run, run_s=run_s) + sending_bytes + events + kept


def samples_bytes(run: Run, *, run_s: float) -> float:
    """What any workload leaves behind: the fixed files, and samples of queues and processes."""
    topology = run.experiment.topology
    link_ends = 2 * len(topologies.build(topology).link_options())
    hosts = len(run.experiment.working_hosts)
    per_s = _PER_LINK_END_BYTES_PER_S * link_ends + _PER_HOST_BYTES_PER_S * hosts
    return _FIXED_BYTES + per_s * run_s


def whole_bytes(directory: Path) -> int:
    """What a run took."""
    return sizes.bytes_below(directory)
