"""Image classification over bounded-loss transfers, with DistributedDataParallel.

    torchrun --nproc_per_node 2 examples/ddp_train.py
    torchrun --nproc_per_node 2 examples/ddp_train.py --protocol gloo      # DDP's own all-reduce

It needs `pip install '.[ddp]'` and no data: the images are digits that it draws itself, each at its
own place, brightness and noise. Nothing of the lab is used.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from testbed.ddp import BoundedLoss, InputError, PeerLost

# The digits in five columns and seven rows; each number is a row's five bits.
GLYPHS = [
    (14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14), (2, 6, 10, 18, 31, 2, 2), (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8), (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
]  # fmt: skip
SIZE = 16


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of digits, shape (count, 1, SIZE, SIZE), and which digit each is."""
    draws = np.random.default_rng(seed)
    bits = np.array(GLYPHS)[:, :, None] >> np.arange(4, -1, -1) & 1
    digits = draws.integers(10, size=count)
    images = draws.normal(scale=0.6, size=(count, 1, SIZE, SIZE))
    for image, digit in zip(images, digits, strict=True):
        top, left = draws.integers(SIZE - 7), draws.integers(SIZE - 5)
        image[0, top : top + 7, left : left + 5] += bits[digit] * draws.uniform(0.8, 2.0)
    return torch.from_numpy(images.astype(np.float32)), torch.from_numpy(digits)


def model(width: int) -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * width, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Training over bounded-loss transfers.")
    parser.add_argument("--protocol", default="dblp", help="a preset, or gloo for DDP's own")
    parser.add_argument("--collective", default="sharded", help="sharded or server")
    parser.add_argument("--mode", default="bounded", help="bounded, reliable or local")
    parser.add_argument("--rate-bps", type=float, help="what a rank's link carries")
    parser.add_argument("--interface", help="this rank's network interface")
    parser.add_argument("--insecure", action="store_true", help="no keys between machines")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=4000, help="of an epoch, on all ranks")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    parser.add_argument("--checkpoint", type=Path, help="a folder: written, and resumed from")
    return parser.parse_args()


def device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    return torch.device("cpu")


def exchange(options: argparse.Namespace) -> BoundedLoss | None:
    """Make the hook; None: DistributedDataParallel's own all-reduce averages."""
    if options.protocol == "gloo":
        return None
    keys = ("collective", "mode", "rate_bps", "interface", "insecure")
    return BoundedLoss(options.protocol, **{key: getattr(options, key) for key in keys})


def train(options: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = model(options.width).to(device())
    ddp = DistributedDataParallel(net)
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    parts: dict[str, Any] = {"model": net, "optimiser": optimiser}
    if state := exchange(options):
        ddp.register_comm_hook(state, state.hook)
        parts["exchange"] = state

    first, file = 0, options.checkpoint and options.checkpoint / f"rank-{rank}.pt"
    if file and file.exists():
        saved = torch.load(file, weights_only=True)
        first = saved.pop("epoch")
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    tests = [tensor.to(device()) for tensor in draw(1000, seed=10**6)]
    for epoch in range(first, options.epochs):
        images, digits = (tensor.to(device()) for tensor in draw(options.images, seed=epoch))
        began_s = time.monotonic()
        for start in range(0, options.images - world * 32 + 1, world * 32):
            optimiser.zero_grad()
            chosen = slice(start + rank * 32, start + rank * 32 + 32)
            nn.functional.cross_entropy(ddp(images[chosen]), digits[chosen]).backward()
            optimiser.step()
        if rank == 0:
            with torch.no_grad():
                accuracy = (net(tests[0]).argmax(1) == tests[1]).float().mean().item()
            took_s = time.monotonic() - began_s
            print(f"epoch {epoch}: accuracy {accuracy:.3f}, {took_s:.1f} s", flush=True)
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            saved = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**saved, "epoch": epoch + 1}, file)
    if rank == 0 and state:
        print(f"the last step: {state.last}")


def main() -> int:
    """Train in the process group that torchrun describes; return the exit status."""
    options = arguments()
    one_each = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    dist.init_process_group("nccl" if one_each else "gloo")
    try:
        train(options)
    except (InputError, PeerLost) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
