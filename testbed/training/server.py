"""The parameter server: gather, mean, phase, broadcast; it also runs the clock of the rounds."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from controllers.messages import ControllerClient
from testbed.jsonl import JsonLinesWriter
from testbed.progress import ProgressWriter
from testbed.training import datasets
from testbed.training.announcement import Phase
from testbed.training.coordination import Coordinator
from testbed.training.events import finite, nonfinite, transfer_record, write_endpoint
from testbed.training.phases import GradientNormDetector
from testbed.training.setting import Setting
from testbed.transport import Leg, TransferReport, open_endpoint


def run(setting: Setting, listener: socket.socket, progress: ProgressWriter) -> None:
    """Serve all rounds, in the server host's network namespace."""
    controller = ControllerClient(setting.controller_socket)
    rounds = JsonLinesWriter(setting.directory / "events" / "rounds.jsonl")
    transfers = JsonLinesWriter(setting.directory / "events" / "transfers-server.jsonl")
    layout = setting.layout
    gathered = {name: layout.new_buffer() for name in setting.workers}
    averaged = layout.new_buffer()
    gather_filling = setting.filling(Leg.GATHER)
    broadcast_filling = setting.filling(Leg.BROADCAST)
    memories = {name: broadcast_filling.sender_memory(layout) for name in setting.workers}
    detector = _detector(setting)

    # The workers' endpoints join while they reach the first barrier, so the endpoint comes first.
    with open_endpoint(setting.endpoint("server")) as endpoint:
        coordinator = Coordinator(listener, setting.workers, setting.barrier_timeout_s)
        for number in range(setting.rounds):
            coordinator.gather("idle")
            began_s = time.monotonic()
            coordinator.release("compute")
            coordinator.gather("gather")
            computed_s = time.monotonic()
            critical = detector.critical
            policies = setting.protocol.policy

            with _impaired(controller, number, "gather") as hurt_gather:
                gather_began_s = time.monotonic()
                coordinator.release("gather")
                reports = endpoint.receive(
                    Leg.GATHER.transfer(number), policies(Leg.GATHER).stop_rule(critical), gathered
                )
                gather_ended_s = time.monotonic()
            gather_filling.estimate_mean(
                layout,
                [gathered[name] for name in setting.workers],
                [_received(reports[name]) for name in setting.workers],
                out=averaged,
            )
            norm = float(np.linalg.norm(layout.floats(averaged)))
            detector.observe(number, norm)
            after = detector.critical
            payloads = {name: memory.payload(averaged) for name, memory in memories.items()}

            with _impaired(controller, number, "broadcast") as hurt_broadcast:
                broadcast_began_s = time.monotonic()
                endpoint.announce(Phase(after).encode())
                sent = endpoint.send(Leg.BROADCAST.transfer(number), payloads)
                received = coordinator.gather("received")
                broadcast_ended_s = max(facts["ended_s"] for facts in received.values())
            coordinator.gather("updated")
            ended_s = time.monotonic()
            for name, memory in memories.items():
                memory.settle(sent[name])

            gather_s = gather_ended_s - gather_began_s
            broadcast_s = broadcast_ended_s - broadcast_began_s
            rounds.write(
                {
                    "round": number,
                    "critical": after,
                    "gradient_norm": finite(norm),
                    "nonfinite": nonfinite(layout.floats(averaged)),
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
                    "impairments": sorted({*hurt_gather, *hurt_broadcast}),
                }
            )
            for leg, by_peer in (("gather", reports), ("broadcast", sent)):
                _record(transfers, by_peer, number, leg)
            progress.round(number + 1, setting.rounds)
        write_endpoint(setting.directory, "server", endpoint)
        coordinator.gather("idle")
        coordinator.release("end")
    controller.close()


def _detector(setting: Setting) -> GradientNormDetector:
    phases = setting.config["phases"]
    cadence = phases["cadence"]
    if cadence == "epoch":
        dataset = datasets.load(setting.training["dataset"])
        cadence = datasets.rounds_per_epoch(
            dataset, len(setting.workers), setting.training["batch_size"]
        )
    return GradientNormDetector(eta=phases["eta"], every_rounds=cadence)


@contextmanager
def _impaired(controller: ControllerClient, number: int, leg: str) -> Iterator[list[str]]:
    """Tell the controller of a leg; yields the impairments that were in force during it.

    Both calls return when the controller has acted, so no data flows before an impairment is in
    force, and the time that this takes is outside the measured legs.
    """
    yield controller.begin(number, leg)
    controller.end(number, leg)


def _received(report: TransferReport) -> NDArray[np.bool_]:
    assert report.received is not None  # a receiver's always says what arrived
    return report.received


def _record(
    transfers: JsonLinesWriter, reports: dict[str, TransferReport], number: int, leg: str
) -> None:
    for report in reports.values():
        transfers.write(transfer_record(report, host="server", round_number=number, leg=leg))
