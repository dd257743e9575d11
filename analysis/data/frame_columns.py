"""The registry of columns: every frame that results have, with its source and its columns.

The readers take their types from here, and so do the data dictionary (docs/reference/events.md and
samples.md) and the reference of the frames, which take the meanings.
"""

from __future__ import annotations

import polars as pl

from analysis.data import critical_path
from analysis.data.columns import Column, FrameColumns, Kind, of_kind

_TEXTS = pl.List(pl.String)


def _one(name: str, kind: Kind, meaning: str) -> Column:
    return Column(name=name, kind=kind, meaning=meaning)


_FLOW = (
    _one("t_s", pl.Float64, "time of the sample"),
    *of_kind(
        pl.String,
        {
            "host": "the sender",
            "peer": "the receiver",
            "leg": "`gather` or `broadcast`; empty for programs",
            "kind": "`udp` for our own transport, `tcp` for the kernel's",
        },
    ),
    *of_kind(
        pl.Float64,
        {
            "cwnd_bytes": "congestion window; null where the algorithm has none",
            "rtt_s": "smoothed round trip; null before the first",
            "rate_bps": "pacing rate; null where the algorithm has none",
            "retransmits": "chunks (segments of TCP) that were sent again so far",
        },
    ),
)

LABELS = (
    _one("run_key", pl.String, "the run: the name of its directory"),
    _one("arm", pl.String, "its arm"),
    _one("seed", pl.Int64, "its seed"),
    _one("factor.NAME", pl.String, "its level of each factor of a sweep, as text"),
)

FRAMES: dict[str, FrameColumns] = {
    "runs": FrameColumns(
        source="status.json",
        row="planned run, whatever its verdict",
        columns=(
            *of_kind(
                pl.String,
                {
                    "verdict": "`ok`, `failed`, `invalid`, `unsupported`, `interrupted`; "
                    "`missing` where nothing of it is on disk",
                    "reason": "why it is not ok",
                    "began_at": "the time of day at its begin",
                },
            ),
            _one("wall_s", pl.Float64, "how long it took"),
            _one("directory", pl.String, "where its files lie; null where it is missing"),
        ),
    ),
    "rounds": FrameColumns(
        source="events/rounds.jsonl",
        row="round",
        columns=(
            _one("round", pl.Int64, "the round's number, from 0"),
            _one(
                "critical", pl.Boolean, "whether the phase was critical after this round's gather"
            ),
            *of_kind(
                pl.Float64,
                {
                    "gradient_norm": "L2 norm of the averaged gradient; null if it is not finite",
                    "tolerance_gather": "the fraction that the gather was allowed to lose",
                    "tolerance_broadcast": "the same of the broadcast",
                    "began_s": "the round's begin",
                    "gather_began_s": "the gather's begin",
                    "gather_ended_s": "the gather's end",
                    "broadcast_began_s": "the broadcast's begin",
                    "ended_s": "the round's end, after the last worker's update",
                    "compute_s": "from the round's begin until all workers had their gradient",
                    "gather_s": "how long the gather took",
                    "broadcast_s": "from the broadcast's begin until the last worker had enough",
                    "latency_s": "gather_s + broadcast_s",
                    "iteration_s": "the whole round",
                },
            ),
            *of_kind(
                _TEXTS,
                {
                    "impairments": "names of the impairments that were in force at any time of the "
                    "round",
                    "workers_lost": "workers that are gone",
                },
            ),
        ),
    ),
    "transfers": FrameColumns(
        source="events/transfers-HOST.jsonl",
        row="transfer and side",
        columns=(
            _one("round", pl.Int64, "the round's number"),
            *of_kind(
                pl.String,
                {
                    "leg": "`gather` or `broadcast`",
                    "role": "whether this side was the `sender` or the `receiver`",
                    "host": "whose record it is",
                    "peer": "the other side's name",
                },
            ),
            *of_kind(
                pl.Int64,
                {
                    "chunk_count": "chunks of the payload",
                    "chunks_received": "how many arrived before the receiver stopped; null at a "
                    "sender that was not told",
                    "passes": "sweeps over the missing chunks; null where the protocol has no "
                    "passes. A receiver tells that of the latest datagram before it had enough",
                    "chunks_sent": "datagrams handed to the network, repetitions included; 0 for a "
                    "receiver",
                    "bytes_sent": "data on the wire, with the headers of all layers",
                    "bytes_received": "the same of what arrived",
                    "control_bytes": "wire bytes of the control messages that this side sent, "
                    "without hedges; for kernel TCP also of its pure acknowledgements",
                    "retransmitted_bytes": "the part of bytes_sent that had been sent before",
                    "duplicates": "valid datagrams whose chunk had arrived before",
                },
            ),
            *of_kind(
                pl.Float64,
                {
                    "began_s": "at the sender, when sending began; at the receiver, when the first "
                    "datagram arrived",
                    "ended_s": "at the receiver, when it had enough; at the sender, when it was "
                    "told so",
                    "duration_s": "ended_s - began_s",
                },
            ),
        ),
    ),
    "training": FrameColumns(
        source="events/training-HOST.jsonl",
        row="worker and round",
        columns=(
            _one("round", pl.Int64, "the round's number"),
            _one("host", pl.String, "the worker"),
            *of_kind(
                pl.Float64,
                {
                    "loss": "of this worker's batch, before the update; null if it is not finite",
                    "compute_s": "forward, backward, and waiting for the pace",
                    "compute_overrun_s": "by how much computing took longer than `training.pace` "
                    "gives",
                    "accuracy": "share of test samples that are classified correctly; null in "
                    "rounds without an evaluation",
                    "perplexity": "the same for language models, in place of accuracy",
                    "elapsed_s": "training time so far, without evaluation",
                    "wait_s": "of a script for torchrun: from its last bucket until all means were "
                    "there, which the backward pass did not hide",
                },
            ),
            *of_kind(
                pl.Int64,
                {
                    "rank": "of a script for torchrun: which one this is",
                    "slowest_rank": "the rank that this one waited for longest in this step",
                    "slowest_bucket": "the bucket in which it did, as the hook numbers them",
                },
            ),
            _one(
                "slowest_s",
                pl.Float64,
                "for how long: that rank's gradient after the first one, or, where that rank "
                "averages, its mean",
            ),
        ),
    ),
    "impairments": FrameColumns(
        source="events/impairments.jsonl",
        row="begin or end of an impairment",
        columns=(
            *of_kind(
                pl.String,
                {
                    "name": "the impairment's name",
                    "kind": "the impairment's kind, such as `loss`: the experiment's key `kind`",
                    "host": "its victim; null where it names a link",
                    "action": "`begin` or `end`; `skipped` where it never began, since its leg or "
                    "the run had ended, or the occurrence before it had not",
                },
            ),
            _one("round", pl.Int64, "the round that it is anchored to; -1 for `at_s`"),
            _one("leg", pl.String, "the leg that it is anchored to; `time` for `at_s`"),
            *of_kind(
                pl.Float64,
                {
                    "planned_s": "when it was to happen",
                    "sent_s": "when the controller began to act",
                    "acknowledged_s": "when it was done",
                },
            ),
            *of_kind(
                pl.Int64,
                {
                    "dropped": "packets that it dropped; of an end",
                    "frames_sent": "frames that it added to the network; of an end",
                },
            ),
            _one("target", pl.String, "the victim, or `a->b`: what a sends to b"),
            _one("details", pl.String, "a JSON object: what it did in this kind's own terms"),
        ),
    ),
    "effects": FrameColumns(
        source="events/effects.jsonl",
        row="measured round (`training.measure_every`)",
        columns=(
            _one("round", pl.Int64, "the round's number"),
            *of_kind(
                pl.String,
                {
                    "gathered": "a JSON object: the gathered gradient beside the lossless mean",
                    "applied": "a JSON object: the same for each worker, after the broadcast",
                },
            ),
            _one(
                "divergence",
                pl.Float64,
                "root mean square distance of the replicas' weights from their mean, over the "
                "mean's norm",
            ),
        ),
    ),
    "critical_path": FrameColumns(
        source="events/*.jsonl",
        row="round: who was waited for in each step, and what its time went into",
        columns=critical_path.COLUMNS,
    ),
    "queues": FrameColumns(
        source="samples/queues.parquet",
        row="end of a link and sample, about 100 a second; counters since the network was built",
        columns=(
            _one("t_s", pl.Float64, "time of the sample"),
            *of_kind(
                pl.String,
                {
                    "link": "the link, as `FIRST--SECOND`",
                    "from": "the node whose output queue it is",
                },
            ),
            *of_kind(
                pl.Int64,
                {
                    "backlog_bytes": "Ethernet frames that wait in the queue",
                    "backlog_packets": "how many they are",
                    "sent_bytes": "bytes that have left the queue",
                    "sent_packets": "packets that have left the queue",
                    "drops": "packets that found the queue full",
                },
            ),
        ),
    ),
    "flows": FrameColumns(
        source="samples/flows.parquet",
        row="sender and sample",
        columns=(
            *_FLOW,
            *of_kind(
                pl.Float64,
                {
                    "port": "the sender's port; null for our own transport",
                    "peer_port": "the receiver's port; null for our own transport",
                    "acked_bytes": "bytes that the receiver has confirmed since the connection "
                    "began; null for our own transport",
                },
            ),
        ),
    ),
    "processes": FrameColumns(
        source="samples/processes.parquet",
        row="process of the lab and sample, about 10 a second",
        columns=(
            _one("t_s", pl.Float64, "time of the sample"),
            _one("name", pl.String, "the process"),
            _one(
                "pid",
                pl.Int64,
                "its number, in the lab's own namespace; of workers that share a process, that of "
                "the thread",
            ),
            _one("host", pl.String, "the host in which it runs; null for a part of the lab"),
            _one("cpu_s", pl.Float64, "processor time since it began"),
            _one("rss_bytes", pl.Int64, "resident memory"),
        ),
    ),
}
SAMPLES = ("queues", "flows", "processes")  # the frames of these, a file of each run
