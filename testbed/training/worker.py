"""A worker: computes a gradient, sends it, receives the mean, updates its model."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from testbed.shared.jsonl import JsonLinesWriter
from testbed.training.barriers import BarrierClient
from testbed.training.filling import Mask, estimate_mean
from testbed.training.logs import CongestionLog, TransferLog, finite, nonfinite, write_endpoint
from testbed.training.state import RunContext, SharedVectors
from testbed.transport import Endpoint, Leg, PayloadLayout, TransferReport
from testbed.transport.messages import unpack_bitmap
from testbed.transport.net.carriers import DataSockets


def run(
    context: RunContext, name: str, vectors: SharedVectors | None, sockets: DataSockets | None
) -> None:
    """Train all rounds as worker `name`, in its host's network namespace, where `sockets` are."""
    _Worker(context, name, vectors).run(sockets)


class _Worker:
    def __init__(self, context: RunContext, name: str, vectors: SharedVectors | None) -> None:
        self._context = context
        self._name = name
        self._now_s = context.surroundings.now_s
        self._vectors = vectors
        layout = self._layout = context.layout
        self._plain = layout.plain
        self._gradient, self._update = context.new_values(), context.new_values()
        self._incoming = context.incoming()
        memory = context.filling(Leg.GATHER).sender_memory(layout.plain)
        self._outgoing = context.outgoing(memory, name)
        self._filling = context.filling(Leg.BROADCAST)
        self._learner = context.learner(name)
        self._log = JsonLinesWriter(context.directory / "events" / f"training-{name}.jsonl")
        self._transfers = TransferLog(context.directory, name, context.logged_layout)
        self._congestion = CongestionLog(context.directory, name)
        connect = context.surroundings.connect
        connection = connect(context.coordination_socket, context.barrier_timeout_s)
        self._barriers = BarrierClient(connection, name)
        self._trained_s = 0.0
        self._metric: float | None = None

    def run(self, sockets: DataSockets | None) -> None:
        context = self._context
        config = context.endpoint(self._name, self._congestion.observe)
        with context.surroundings.open_endpoint(config, sockets) as endpoint:
            for number in range(context.rounds):
                self._barriers.reach("idle", metric=self._metric)
                self._barriers.wait("compute")
                self._round(endpoint, number)
            self._learner.save(context.directory / f"weights-{self._name}.pt")
            write_endpoint(context.directory, self._name, endpoint)
            self._barriers.reach("idle", metric=self._metric)
            self._barriers.wait("end")

    def _round(self, endpoint: Endpoint, number: int) -> None:
        context, gather = self._context, Leg.GATHER.transfer(number)
        began_s = self._now_s()
        gradient = self._plain.floats(self._gradient)
        loss = self._learner.gradient(gradient)
        payload = self._outgoing.payload(self._gradient, gather)
        pace, rank = context.training["pace"], context.ranks[self._name]
        lasts_s = computing_s(pace, seed=context.seed, rank=rank, round_number=number)
        sleep = context.surroundings.sleep
        overrun_s = wait_until_computed(
            pace, began_s, lasts_s=lasts_s, now_s=self._now_s, sleep=sleep
        )
        computed_s = self._now_s()
        vectors = self._vectors if context.measures_after(number) else None
        if vectors is not None:
            vectors.gradients[self._name][:] = gradient
        self._barriers.reach("gather")
        self._barriers.wait("gather")
        sent = endpoint.send(gather, {"server": payload})["server"]
        self._outgoing.settle(sent)

        critical = decode_phase(endpoint.await_announcement())
        rule = context.protocol.policy(Leg.BROADCAST).stop_rule(critical)
        into = {"server": self._incoming.buffer}
        report = endpoint.receive(Leg.BROADCAST.transfer(number), rule, into)["server"]
        if self._filling.common:
            self._barriers.reach("received", ended_s=self._apply_common(endpoint, report, number))
        else:
            self._barriers.reach("received", ended_s=report.ended_s)
            self._apply(report.received, number)
        ended_s = self._now_s()
        self._trained_s += ended_s - began_s
        self._barriers.reach("updated")

        if vectors is not None:
            vectors.updates[self._name][:] = self._plain.floats(self._update)
            self._learner.weights(vectors.weights[self._name])
        self._transfers.write(number, "gather", [sent])
        self._transfers.write(number, "broadcast", [report])
        self._congestion.flush()
        self._metric = self._learner.evaluate() if context.evaluates_after(number) else None
        self._log.write(
            {
                "round": number,
                "host": self._name,
                "loss": None if loss is None else finite(loss),
                "nonfinite": nonfinite(gradient) if context.surroundings.contents else 0,
                "compute_s": computed_s - began_s,
                "compute_overrun_s": overrun_s,
                context.metric: None if self._metric is None else finite(self._metric),
                "elapsed_s": self._trained_s,
            }
        )

    def _apply(self, received: Mask | None, number: int) -> None:
        assert received is not None
        arrived, update = [self._incoming.read(received)], self._update
        estimate_mean(self._filling, self._plain, arrived, [received], out=update)
        self._learner.apply(self._plain.floats(update), self._context.learning_rate(number))

    def _apply_common(self, endpoint: Endpoint, report: TransferReport, number: int) -> float:
        """Update with what all workers have got; returns when that had ended, less hidden waits."""
        # It is announced a round trip later, and usually what this worker has applied at once.
        assert report.received is not None
        undo = self._learner.snapshot()
        self._apply(report.received, number)
        applied_s = self._now_s()
        common = report.received & await_common(endpoint, self._layout)
        announced_s = self._now_s()
        if np.array_equal(common, report.received):
            return report.ended_s + announced_s - applied_s
        undo()
        self._apply(common, number)
        return announced_s


def computing_s(pace: dict[str, Any], *, seed: int, rank: int, round_number: int) -> float:
    median_s, spread = float(pace.get("compute_s", 0.0)), float(pace.get("spread", 0.0))
    if not spread:
        return median_s
    draw = np.random.default_rng([seed, 8, rank, round_number]).standard_normal()
    return median_s * math.exp(spread * draw)


def wait_until_computed(
    pace: dict[str, Any],
    began_s: float,
    lasts_s: float,
    *,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Sleep until an iteration has taken its time; returns by how many seconds it took longer."""
    late_s = now_s() - (began_s + lasts_s)
    if pace["kind"] == "real":
        return 0.0
    if late_s < 0:
        sleep(-late_s)
    return max(0.0, late_s)


def decode_phase(body: bytes) -> bool:
    """Return whether the announced phase is critical; ValueError unless it is one byte, 0 or 1."""
    if body not in (b"\x00", b"\x01"):
        raise ValueError(f"not a phase announcement: {body[:8]!r}")
    return body == b"\x01"


def await_common(endpoint: Endpoint, layout: PayloadLayout) -> Mask:
    """Wait for what the server's `announce_common` sends, shape (chunk_count,)."""
    size, bits = -(-layout.chunk_count // 8), b""
    while len(bits) < size:
        bits += endpoint.await_announcement()
    return unpack_bitmap(bits, layout.chunk_count)
