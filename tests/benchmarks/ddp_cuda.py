"""The time of a training step whose gradients are on a GPU, beside Gloo's all-reduce and a copy.

    python -m tests.benchmarks.ddp_cuda [--millions 10 100] [--ranks 2] [--turns 9]

All ranks share the first GPU, so that is not how one would train; Gloo has the same conditions. A
step is a forward pass, a backward pass and a step of SGD of a model with so many million
parameters, which computes little. `copy` exchanges nothing: each bucket goes to new memory of the
processor and back; `pinned copy` always to the same memory, which the GPU reads and writes itself.
All kinds take turns in each process. It prints the median of each kind's seconds and their range,
and the medians of the turns' ratios to Gloo and to the copy. The slowest rank counts.
"""

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from testbed.ddp import BoundedLoss
from tests.benchmarks.ddp_step import show
from tests.ddp.ranks import launch, values

# DDP's own all-reduce; hooks that only copy; ours.
KINDS: dict[str, dict[str, Any] | None] = {
    "gloo": None,
    "copy": {},
    "pinned copy": {},
    "local": {"mode": "local"},
    "reliable, sharded": {"mode": "reliable"},
    "dblp, sharded": {"protocol": "dblp"},
}
LAYERS = 8
WARM_UP = 4


def copied(
    kept: dict[int, torch.Tensor] | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Keeps each rank's own gradient, by way of the processor's memory, or of what is `kept`."""
    gradient = bucket.buffer()
    if kept is None:
        there = gradient.to("cpu")
    else:
        there = kept.get(bucket.index(), torch.empty(0))
        if there.numel() != gradient.numel():  # DDP makes its buckets anew after the first step
            there = torch.empty(gradient.numel(), pin_memory=True)
            kept[bucket.index()] = there
        there.copy_(gradient)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[gradient.device])
    future.set_result(gradient.copy_(there))
    return future


def work(rank: int, millions: float, turns: int) -> dict[str, Any]:
    """Seconds of each turn by kind, and the GPU's name."""
    width = round((millions * 1e6 / LAYERS) ** 0.5)
    inputs = torch.ones(32, width, device="cuda") * (rank + 1)
    made = {}
    for kind, settings in KINDS.items():
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
        ddp = DistributedDataParallel(net.to("cuda"))
        if settings:
            state = BoundedLoss(**{"timeout_s": 60, **settings})
            ddp.register_comm_hook(state, state.hook)
        elif settings is not None:
            ddp.register_comm_hook({} if kind == "pinned copy" else None, copied)
        made[kind] = ddp, torch.optim.SGD(ddp.parameters(), lr=1e-3)
    took_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(WARM_UP + turns):
        for kind, (ddp, optimiser) in made.items():
            torch.cuda.synchronize()
            dist.barrier()
            began_s = time.perf_counter()
            optimiser.zero_grad()
            ddp(inputs).square().mean().backward()
            optimiser.step()
            torch.cuda.synchronize()
            if turn >= WARM_UP:
                took_s[kind].append(time.perf_counter() - began_s)
    return {"took_s": took_s, "gpu": torch.cuda.get_device_name()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=float, nargs="+", default=[10.0, 100.0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    for millions in given.millions:
        told = values(launch(work, given.ranks, within_s=600, millions=millions, turns=given.turns))
        print(f"{millions:g} million parameters, {given.ranks} ranks on one {told[0]['gpu']}")
        show([each["took_s"] for each in told], beside=("gloo", "copy"))


if __name__ == "__main__":
    main()
