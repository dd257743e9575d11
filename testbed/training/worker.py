"""A worker: forward, backward, send, receive, update."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from testbed.jsonl import JsonLinesWriter
from testbed.training import datasets, models
from testbed.training.announcement import Phase
from testbed.training.coordination import Follower
from testbed.training.events import finite, nonfinite, transfer_record, write_endpoint
from testbed.training.setting import Setting
from testbed.transport import Leg, open_endpoint


def run(setting: Setting, name: str) -> None:
    """Train all rounds as worker `name`, in its host's network namespace."""
    training = setting.training
    rank = setting.workers.index(name)
    dataset = datasets.load(training["dataset"])
    own = datasets.share(len(dataset.train_labels), rank, len(setting.workers), setting.seed)
    batches = datasets.batches(own, training["batch_size"], setting.seed, rank)
    model = models.build(training["model"], setting.seed)
    optimiser = torch.optim.SGD(
        model.parameters(), lr=training["learning_rate"], momentum=training["momentum"]
    )
    log = JsonLinesWriter(setting.directory / "events" / f"training-{name}.jsonl")
    transfers = JsonLinesWriter(setting.directory / "events" / f"transfers-{name}.jsonl")
    layout = setting.layout
    outgoing, incoming, update = (layout.new_buffer() for _ in range(3))
    memory = setting.filling(Leg.GATHER).sender_memory(layout)
    broadcast_filling = setting.filling(Leg.BROADCAST)
    follower = Follower(setting.coordination_socket, name, setting.barrier_timeout_s)
    trained_s = 0.0

    with open_endpoint(setting.endpoint(name)) as endpoint:
        for round_number in range(setting.rounds):
            follower.reach("idle")
            follower.wait("compute")
            began_s = time.monotonic()
            chosen = next(batches)
            loss = _gradient(
                model,
                dataset.train_inputs[chosen],
                dataset.train_labels[chosen],
                layout.floats(outgoing),
            )
            payload = memory.payload(outgoing)
            computed_s = time.monotonic()
            follower.reach("gather")
            follower.wait("gather")
            sent = endpoint.send(Leg.GATHER.transfer(round_number), {"server": payload})["server"]
            memory.settle(sent)

            phase = Phase.decode(endpoint.await_announcement())
            rule = setting.protocol.policy(Leg.BROADCAST).stop_rule(phase.critical)
            report = endpoint.receive(
                Leg.BROADCAST.transfer(round_number), rule, {"server": incoming}
            )["server"]
            follower.reach("received", ended_s=report.ended_s)
            assert report.received is not None
            broadcast_filling.estimate_mean(layout, [incoming], [report.received], out=update)
            apply_gradient(model, optimiser, layout.floats(update))
            ended_s = time.monotonic()
            trained_s += ended_s - began_s
            follower.reach("updated")

            transfers.write(
                transfer_record(sent, host=name, round_number=round_number, leg="gather")
            )
            transfers.write(
                transfer_record(report, host=name, round_number=round_number, leg="broadcast")
            )
            last = round_number == setting.rounds - 1
            evaluated = last or round_number % training["evaluate_every"] == 0
            log.write(
                {
                    "round": round_number,
                    "host": name,
                    "loss": finite(loss),
                    "nonfinite": nonfinite(layout.floats(outgoing)),
                    "compute_s": computed_s - began_s,
                    "accuracy": accuracy(model, dataset) if evaluated else None,
                    "elapsed_s": trained_s,
                }
            )
        torch.save(model.state_dict(), setting.directory / f"weights-{name}.pt")
        write_endpoint(setting.directory, name, endpoint)
        follower.reach("idle")
        follower.wait("end")


def _gradient(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, into: NDArray[np.float32]
) -> float:
    """Write the flat gradient of the batch's mean loss to `into`; return the loss."""
    model.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    place = 0
    for parameter in model.parameters():
        count = parameter.numel()
        assert parameter.grad is not None
        into[place : place + count] = parameter.grad.numpy().reshape(-1)
        place += count
    return loss.item()


def apply_gradient(
    model: nn.Module, optimiser: torch.optim.Optimizer, flat: NDArray[np.float32]
) -> None:
    """Give every parameter its part of a flat gradient and take one optimiser step."""
    place = 0
    for parameter in model.parameters():
        count = parameter.numel()
        part = torch.from_numpy(flat[place : place + count].copy())
        parameter.grad = part.view_as(parameter)
        place += count
    optimiser.step()


@torch.no_grad()
def accuracy(model: nn.Module, dataset: datasets.Dataset) -> float:
    """The share of test samples that the model classifies correctly."""
    model.eval()
    predicted = model(dataset.test_inputs).argmax(dim=1)
    model.train()
    return float((predicted == dataset.test_labels).float().mean())
