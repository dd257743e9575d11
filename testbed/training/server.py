"""The parameter server: gathers, averages, sets the phase, broadcasts, and times the rounds."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controllers.controller_socket import ControllerClient
from testbed.shared.jsonl import JsonLinesWriter
from testbed.shared.messages import ProgressWriter
from testbed.training import phases
from testbed.training.barriers import BarrierServer
from testbed.training.coding import Outgoing
from testbed.training.filling import (
    Buffer,
    Filling,
    Mask,
    SenderMemory,
    estimate_mean,
    mean_into,
)
from testbed.training.logs import (
    CongestionLog,
    TransferLog,
    deviation,
    divergence,
    finite,
    nonfinite,
    norm,
    write_endpoint,
)
from testbed.training.phases import Observation
from testbed.training.state import RunContext, SharedVectors
from testbed.transport import Endpoint, Leg, PayloadLayout, TransferReport
from testbed.transport.messages import MAX_ANNOUNCEMENT_BYTES, pack_bitmap
from testbed.transport.net.carriers import DataSockets


def run(
    context: RunContext,
    listener: socket.socket,
    controller: ControllerClient,
    progress: ProgressWriter,
    vectors: SharedVectors | None,
    sockets: DataSockets | None,
) -> None:
    """Serve all rounds, in the server host's network namespace, where `sockets` are."""
    _Server(context, controller, vectors).run(listener, progress, sockets)


class BroadcastMemory:
    """The server's memory of what its broadcasts did not deliver: one for all where `common`."""

    def __init__(
        self,
        filling: Filling,
        layout: PayloadLayout,
        workers: Sequence[str],
        sending: Callable[[SenderMemory], Outgoing],
    ) -> None:
        self._filling, self._layout = filling, layout
        memory = filling.sender_memory(layout.plain)
        # One that remembers nothing makes the same payload for all.
        shared = filling.common or memory.shared or type(memory) is SenderMemory
        first = sending(memory)
        self._memories = {
            name: first if shared else sending(filling.sender_memory(layout.plain))
            for name in workers
        }

    def payloads(self, mean: Buffer, present: Sequence[str], transfer: int) -> dict[str, Buffer]:
        """The payload of each worker; called once a round, since it adds the mean."""
        made: dict[int, Buffer] = {}
        for name in present:
            memory = self._memories[name]
            if id(memory) not in made:
                made[id(memory)] = memory.payload(mean, transfer)
        return {name: made[id(self._memories[name])] for name in present}

    def common(self, sent: Mapping[str, TransferReport]) -> Mask | None:
        """The chunks that all have received, shape (chunk_count,); None: it is not announced."""
        if not self._filling.common:
            return None
        common = np.ones(self._layout.chunk_count, dtype=np.bool_)
        for report in sent.values():
            if report.received is not None:  # kernel TCP has delivered all
                common &= report.received
        return common

    def settle(self, sent: Mapping[str, TransferReport], common: Mask | None) -> None:
        """The broadcast has ended; `common` is what was announced of it."""
        for name, report in sent.items():
            if common is not None:
                count = int(np.count_nonzero(common))
                report = replace(report, received=common, chunks_received=count)
            self._memories[name].settle(report)
            if common is not None:
                return  # the memory is everyone's


class _Server:
    def __init__(
        self, context: RunContext, controller: ControllerClient, vectors: SharedVectors | None
    ) -> None:
        self._context = context
        self._now_s = context.surroundings.now_s
        self._vectors = vectors
        self._controller = controller
        events = context.directory / "events"
        self._rounds = JsonLinesWriter(events / "rounds.jsonl")
        self._transfers = TransferLog(context.directory, "server", context.logged_layout)
        self._congestion = CongestionLog(context.directory, "server")
        self._effects = JsonLinesWriter(events / "effects.jsonl") if vectors is not None else None
        self._layout = context.layout
        self._plain = context.layout.plain
        self._gathered = {name: context.incoming() for name in context.workers}
        self._averaged = context.new_values()
        self._filling = context.filling(Leg.GATHER)
        self._memory = BroadcastMemory(
            context.filling(Leg.BROADCAST),
            self._layout,
            context.workers,
            lambda memory: context.outgoing(memory, "server"),
        )
        self._detector = context.detector()

    def run(
        self, listener: socket.socket, progress: ProgressWriter, sockets: DataSockets | None
    ) -> None:
        context = self._context
        # Workers join before they reach the first barrier, so the endpoint opens first.
        config = context.endpoint("server", self._congestion.observe)
        with context.surroundings.open_endpoint(config, sockets) as endpoint:
            barriers = BarrierServer(
                listener,
                context.workers,
                context.barrier_timeout_s,
                keep_going=context.survives_workers,
            )
            self._endpoint, self._barriers = endpoint, barriers
            idle = barriers.gather("idle")
            for number in range(context.rounds):
                self._round(number, _mean_metric(idle))
                progress.round(number + 1, context.rounds)
                idle = barriers.gather("idle")
                if self._vectors is not None and context.measures_after(number):
                    self._measure(self._vectors, number)
            write_endpoint(context.directory, "server", endpoint)
            barriers.release("end")
            self._controller.finish()
        self._controller.close()

    def _round(self, number: int, metric: float | None) -> None:
        context, barriers, broadcast = self._context, self._barriers, Leg.BROADCAST.transfer(number)
        policies, contents = context.protocol.policy, context.surroundings.contents
        self._controller.begin(number, "round")
        began_s = self._now_s()
        barriers.release("compute")
        barriers.gather("gather")
        computed_s = self._now_s()
        critical = self._detector.critical

        with self._impaired(number, "gather") as during_gather:
            gather_began_s = self._now_s()
            barriers.release("gather")
            reports = self._endpoint.receive(
                Leg.GATHER.transfer(number),
                policies(Leg.GATHER).stop_rule(critical),
                {name: self._gathered[name].buffer for name in barriers.present},
            )
            gather_ended_s = self._now_s()
        self._drop_lost()
        # In rank order: sums of floats must not depend on whose gradient came first.
        senders = [name for name in context.workers if name in reports]
        masks = [_received(reports[name]) for name in senders]
        arrived = [
            self._gathered[name].read(mask) for name, mask in zip(senders, masks, strict=True)
        ]
        estimate_mean(self._filling, self._plain, arrived, masks, out=self._averaged)
        averaged = self._plain.floats(self._averaged)
        after = phases.observe(
            self._detector,
            Observation(
                round_number=number,
                gradient=averaged,
                learning_rate=context.learning_rate(number),
                accuracy=metric if context.metric == "accuracy" else None,
            ),
        )
        payloads = self._memory.payloads(self._averaged, barriers.present, broadcast)

        with self._impaired(number, "broadcast") as during_broadcast:
            broadcast_began_s = self._now_s()
            self._endpoint.announce(bytes([after]))
            sent = self._endpoint.send(broadcast, payloads)
            if (common := self._memory.common(sent)) is not None:
                announce_common(self._endpoint, common)
            self._drop_lost()
            received = barriers.gather("received")
            broadcast_ended_s = max(facts["ended_s"] for facts in received.values())
        barriers.gather("updated")
        ended_s = self._now_s()
        during_round = self._controller.end(number, "round")
        self._memory.settle(sent, common)

        gather_s = gather_ended_s - gather_began_s
        broadcast_s = broadcast_ended_s - broadcast_began_s
        self._rounds.write(
            {
                "round": number,
                "critical": after,
                "gradient_norm": finite(norm(averaged)) if contents else None,
                "nonfinite": nonfinite(averaged) if contents else 0,
                "learning_rate": context.learning_rate(number),
                "tolerance_gather": policies(Leg.GATHER).tolerance(critical),
                "tolerance_broadcast": policies(Leg.BROADCAST).tolerance(after),
                "began_s": began_s,
                "gather_began_s": gather_began_s,
                "gather_ended_s": gather_ended_s,
                "broadcast_began_s": broadcast_began_s,
                "ended_s": ended_s,
                "compute_s": computed_s - began_s,
                "gather_s": gather_s,
                "broadcast_s": broadcast_s,
                "latency_s": gather_s + broadcast_s,
                "iteration_s": ended_s - began_s,
                "impairments": sorted({*during_gather, *during_broadcast, *during_round}),
                "workers_lost": sorted(barriers.lost),
            }
        )
        self._transfers.write(number, "gather", reports.values())
        self._transfers.write(number, "broadcast", sent.values())
        self._congestion.flush()

    def _drop_lost(self) -> None:
        for name, reason in self._endpoint.lost.items():
            self._barriers.drop(name, reason)

    def _measure(self, vectors: SharedVectors, number: int) -> None:
        """Write the effects of a round's loss, while all workers are idle and no time counts."""
        present = self._barriers.present
        lossless = np.empty(self._layout.element_count, dtype=np.float32)
        mean_into([vectors.gradients[name] for name in present], lossless)
        gathered = deviation(self._plain.floats(self._averaged), lossless)
        applied = {name: deviation(vectors.updates[name], lossless) for name in present}
        assert self._effects is not None
        self._effects.write(
            {
                "round": number,
                "gathered": gathered,
                "applied": applied,
                "divergence": divergence([vectors.weights[name] for name in present]),
            }
        )

    @contextmanager
    def _impaired(self, number: int, leg: str) -> Iterator[list[str]]:
        """Announce a leg to the controller; yield the impairments that were in force during it."""
        # Both calls return when the controller has acted: its time is no part of the leg.
        in_force = self._controller.begin(number, leg)
        yield in_force
        in_force += self._controller.end(number, leg)


def _mean_metric(idle: Mapping[str, Mapping[str, Any]]) -> float | None:
    values = [facts["metric"] for facts in idle.values() if facts.get("metric") is not None]
    return float(np.mean(values)) if values else None


def _received(report: TransferReport) -> NDArray[np.bool_]:
    assert report.received is not None  # a receiver's report always has it
    return report.received


def announce_common(endpoint: Endpoint, common: Mask) -> None:
    bits = pack_bitmap(common)
    for begin in range(0, len(bits), MAX_ANNOUNCEMENT_BYTES):
        endpoint.announce(bits[begin : begin + MAX_ANNOUNCEMENT_BYTES])
