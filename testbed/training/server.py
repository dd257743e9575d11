"""The parameter server: gathers, averages, sets the phase, broadcasts, and times the rounds."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controllers.controller_socket import ControllerClient
from testbed.shared.jsonl import JsonLinesWriter
from testbed.shared.messages import ProgressWriter
from testbed.training import broadcasts, phases
from testbed.training.coordination import Coordinator
from testbed.training.events import (
    CongestionLog,
    TransferLog,
    deviation,
    divergence,
    finite,
    nonfinite,
    write_endpoint,
)
from testbed.training.filling import estimate_mean, mean_into
from testbed.training.phases import Observation
from testbed.training.run_context import RunContext, SharedVectors
from testbed.transport import Leg, TransferReport
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
        self._gathered = {name: context.new_buffer() for name in context.workers}
        self._averaged = context.new_buffer()
        self._filling = context.filling(Leg.GATHER)
        self._memory = broadcasts.BroadcastMemory(
            context.filling(Leg.BROADCAST), self._layout, context.workers
        )
        self._detector = context.detector()

    def run(
        self, listener: socket.socket, progress: ProgressWriter, sockets: DataSockets | None
    ) -> None:
        context = self._context
        # The workers' endpoints join before they reach the first barrier, so the endpoint opens
        # first.
        config = context.endpoint("server", self._congestion.observe)
        with context.surroundings.open_endpoint(config, sockets) as endpoint:
            coordinator = Coordinator(
                listener,
                context.workers,
                context.barrier_timeout_s,
                keep_going=context.survives_workers,
            )
            self._endpoint, self._coordinator = endpoint, coordinator
            for number in range(context.rounds):
                idle = coordinator.gather("idle")
                self._between(number)
                self._round(number, _mean_metric(idle))
                progress.round(number + 1, context.rounds)
            coordinator.gather("idle")
            self._between(context.rounds)
            write_endpoint(context.directory, "server", endpoint)
            coordinator.release("end")
            self._controller.finish()
        self._controller.close()

    def _round(self, number: int, metric: float | None) -> None:
        context, layout, coordinator = self._context, self._layout, self._coordinator
        policies, contents = context.protocol.policy, context.surroundings.contents
        self._controller.begin(number, "round")
        began_s = self._now_s()
        coordinator.release("compute")
        coordinator.gather("gather")
        computed_s = self._now_s()
        critical = self._detector.critical

        with self._impaired(number, "gather") as hurt_gather:
            gather_began_s = self._now_s()
            coordinator.release("gather")
            reports = self._endpoint.receive(
                Leg.GATHER.transfer(number),
                policies(Leg.GATHER).stop_rule(critical),
                {name: self._gathered[name] for name in coordinator.present},
            )
            gather_ended_s = self._now_s()
        self._leave_behind()
        came = self._in_rank_order(reports)
        self._filling.begin_round(critical, np.random.default_rng([context.seed, number]))
        estimate_mean(
            self._filling,
            layout,
            [self._gathered[name] for name in came],
            [_received(reports[name]) for name in came],
            out=self._averaged,
        )
        averaged = layout.floats(self._averaged)
        after = phases.observe(
            self._detector,
            Observation(
                round_number=number,
                gradient=averaged,
                learning_rate=context.learning_rate(number),
                accuracy=metric if context.metric == "accuracy" else None,
            ),
        )
        payloads = self._memory.payloads(self._averaged, coordinator.present)

        with self._impaired(number, "broadcast") as hurt_broadcast:
            broadcast_began_s = self._now_s()
            self._endpoint.announce(broadcasts.encode_phase(after))
            sent = self._endpoint.send(Leg.BROADCAST.transfer(number), payloads)
            if (common := self._memory.common(sent)) is not None:
                broadcasts.announce_common(self._endpoint, common)
            self._leave_behind()
            received = coordinator.gather("received")
            broadcast_ended_s = max(facts["ended_s"] for facts in received.values())
        coordinator.gather("updated")
        ended_s = self._now_s()
        hurt_round = self._controller.end(number, "round")
        self._memory.settle(sent, common)

        gather_s = gather_ended_s - gather_began_s
        broadcast_s = broadcast_ended_s - broadcast_began_s
        self._rounds.write(
            {
                "round": number,
                "critical": after,
                "gradient_norm": finite(float(np.linalg.norm(averaged))) if contents else None,
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
                "impairments": sorted({*hurt_gather, *hurt_broadcast, *hurt_round}),
                "workers_lost": sorted(coordinator.lost),
            }
        )
        self._transfers.write(number, "gather", reports.values())
        self._transfers.write(number, "broadcast", sent.values())
        self._congestion.flush()

    def _in_rank_order(self, reports: Mapping[str, TransferReport]) -> list[str]:
        """Who sent them. Sums of floats must not depend on whose gradient came first."""
        return [name for name in self._context.workers if name in reports]

    def _leave_behind(self) -> None:
        """Stop waiting at barriers for workers that the transport has lost."""
        for name, reason in self._endpoint.lost.items():
            self._coordinator.drop(name, reason)

    def _between(self, rounds_done: int) -> None:
        """Do what is due while all workers are idle, outside every measured time."""
        last = rounds_done - 1
        if last >= 0 and self._vectors is not None and self._context.measures_after(last):
            self._measure(self._vectors, last)

    def _measure(self, vectors: SharedVectors, number: int) -> None:
        """Log the effects of loss on a round, compared with the gradients that were sent."""
        present = self._coordinator.present
        lossless = np.empty(self._layout.element_count, dtype=np.float32)
        mean_into([vectors.gradients[name] for name in present], lossless)
        gathered = deviation(self._layout.floats(self._averaged), lossless)
        applied = {name: asdict(deviation(vectors.updates[name], lossless)) for name in present}
        assert self._effects is not None
        self._effects.write(
            {
                "round": number,
                "gathered": asdict(gathered),
                "applied": applied,
                "divergence": divergence([vectors.weights[name] for name in present]),
            }
        )

    @contextmanager
    def _impaired(self, number: int, leg: str) -> Iterator[list[str]]:
        """Announce a leg to the controller; yield the impairments that were in force during it."""
        # Both calls return when the controller has acted: its time is no part of the leg.
        hurt = self._controller.begin(number, leg)
        yield hurt
        hurt += self._controller.end(number, leg)


def _mean_metric(idle: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The mean over the workers that have just evaluated."""
    values = [facts["metric"] for facts in idle.values() if facts.get("metric") is not None]
    return float(np.mean(values)) if values else None


def _received(report: TransferReport) -> NDArray[np.bool_]:
    assert report.received is not None  # a receiver's report always has it
    return report.received
