"""Trains one of the lab's models on one of its data sets by DistributedDataParallel.

    lab-python ddp_task.py --dataset glyphs --model small-cnn --steps 200

What averages the gradients is the arm's affair. Rank 0 keeps the weights of some steps, and
evaluates them when the training is over: that costs no step any time. It writes the step, the
seconds until then and the perplexity, exp(mean loss) over the test part, into the lab's events.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from testbed.ddp import BoundedLoss, InputError, PeerLost
from testbed.training import datasets, models
from testbed.training.datasets import splits


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--model", default="small-cnn")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="examples of each rank")
    parser.add_argument("--optimiser", default="sgd", help="sgd, with momentum 0.9, or adam")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--every", type=int, default=10, help="steps between evaluations")
    parser.add_argument("--examples", type=int, help="of the test part, the first so many")
    parser.add_argument("--validate", action="store_true", help="evaluate on the validation part")
    return parser.parse_args()


def train(options: argparse.Namespace) -> None:
    rank, seed = dist.get_rank(), int(os.environ.get("LAB_SEED", "0"))
    dataset = datasets.load(options.dataset)
    if options.validate:
        dataset = splits.validating(dataset, seed)
    task = dataset.task
    net = models.build(
        options.model, seed, classes=dataset.classes, input_shape=dataset.input_shape
    )
    ddp = DistributedDataParallel(net)
    state = BoundedLoss(rate_bps=math.inf)
    ddp.register_comm_hook(state, state.hook)
    if options.optimiser == "adam":
        optimiser: torch.optim.Optimizer = torch.optim.Adam(ddp.parameters(), options.learning_rate)
    else:
        optimiser = torch.optim.SGD(ddp.parameters(), options.learning_rate, momentum=0.9)
    shares = splits.shares(splits.Equal(), dataset.groups, dist.get_world_size(), seed)
    batches = splits.batches(shares[rank], options.batch, seed, rank)
    kept: list[tuple[int, float, dict[str, Any]]] = []
    began_s = time.monotonic()
    for step in range(options.steps):
        chosen = next(batches)
        optimiser.zero_grad()
        task.loss(ddp(dataset.train_inputs[chosen]), dataset.train_labels[chosen]).backward()
        optimiser.step()
        if rank == 0 and (step + 1) % options.every == 0:
            weights = {name: value.clone() for name, value in net.state_dict().items()}
            kept.append((step, time.monotonic() - began_s, weights))
    dist.barrier()
    state.close()
    if rank == 0:
        count = len(dataset.test_labels)
        record(net, dataset, kept, min(options.examples or count, count))


def record(
    net: torch.nn.Module,
    dataset: datasets.Dataset,
    kept: list[tuple[int, float, dict[str, Any]]],
    examples: int,
) -> None:
    """Write the evaluations of kept weights into the lab's events."""
    torch.set_num_threads(os.cpu_count() or 1)  # the other ranks have ended
    name = os.environ.get("LAB_PROGRAM", "server")
    path = Path(os.environ.get("LAB_EVENTS", ".")) / f"training-{name}-evaluations.jsonl"
    with path.open("w") as file:
        for step, elapsed_s, weights in kept:
            net.load_state_dict(weights)
            loss = mean_loss(net, dataset, examples)
            line = {"round": step, "elapsed_s": elapsed_s, "perplexity": math.exp(loss)}
            print(json.dumps(line), file=file)
    print(f"after {step + 1} steps, {elapsed_s:.1f} s: test loss {loss:.4f}", flush=True)


@torch.no_grad()
def mean_loss(
    net: torch.nn.Module, dataset: datasets.Dataset, count: int, at_once: int = 100
) -> float:
    net.eval()
    total = 0.0
    for start in range(0, count, at_once):
        part = slice(start, min(start + at_once, count))
        labels = dataset.test_labels[part]
        total += float(dataset.task.loss(net(dataset.test_inputs[part]), labels)) * len(labels)
    net.train()
    return total / count


def main() -> int:
    options = arguments()
    dist.init_process_group("gloo")
    try:
        train(options)
    except (InputError, PeerLost) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
