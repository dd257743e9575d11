"""Semi-synchronous training over bounded-loss transfers: the ranks meet once in many steps.

    torchrun --nproc_per_node 2 examples/diloco_train.py
    torchrun --nproc_per_node 2 examples/diloco_train.py --protocol gloo   # all-reduces, to compare

This is DiLoCo (Douillard et al., arXiv 2311.08105). From weights that are equal on all ranks, each
takes `--every` steps of AdamW by itself. How far it has come is its pseudo-gradient. The mean of
these is the gradient of one step of SGD with Nesterov's momentum, from where all began.

It needs `pip install '.[ddp]'` and no data, as `ddp_train.py` beside it, whose model it trains.
"""

import argparse
import sys
import time

import torch
import torch.distributed as dist
from ddp_train import common_options, device, draw, exchange, model, run
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

BATCH = 32


def arguments() -> argparse.Namespace:
    parser = common_options(__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="outer steps")
    parser.add_argument("--every", type=int, default=20, help="inner steps between two outer ones")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    return parser.parse_args()


def inner_steps(net: nn.Module, optimiser: torch.optim.Optimizer, every: int, seed: int) -> None:
    """Trains a rank by itself."""
    images, digits = (tensor.to(device()) for tensor in draw(every * BATCH, seed))
    for chosen in torch.arange(every * BATCH, device=device()).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(images[chosen]), digits[chosen]).backward()
        optimiser.step()


def train(options: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # equal weights on all ranks
    net = model(options.width).to(device())
    inner = torch.optim.AdamW(net.parameters(), lr=0.002)
    weights = nn.Parameter(parameters_to_vector(net.parameters()).detach().clone())
    outer = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    state = exchange(options)
    tests = [tensor.to(device()) for tensor in draw(1000, seed=10**6)]
    for number in range(options.rounds):
        began_s = time.monotonic()
        inner_steps(net, inner, options.every, seed=number * world + rank)
        computed_s = time.monotonic() - began_s
        # A tensor of its own in each round: the mean takes its place.
        gradient = weights.detach() - parameters_to_vector(net.parameters()).detach()
        if state is not None:
            state.average(gradient)
        else:
            dist.all_reduce(gradient)
            gradient /= world
        weights.grad = gradient
        outer.step()
        # A copy, since the model's parameters become views of what they are given.
        vector_to_parameters(weights.detach().clone(), net.parameters())
        if rank == 0:
            with torch.no_grad():
                accuracy = (net(tests[0]).argmax(1) == tests[1]).float().mean().item()
            took_s = time.monotonic() - began_s - computed_s
            print(
                f"round {number}: accuracy {accuracy:.3f}, all moved by {gradient.norm():.4f}, "
                f"computed {computed_s:.2f} s, met and evaluated {took_s:.2f} s",
                flush=True,
            )
    if rank == 0 and state is not None:
        print(f"the last outer step: {state.last}")


if __name__ == "__main__":
    options = arguments()
    sys.exit(run(lambda: train(options)))
