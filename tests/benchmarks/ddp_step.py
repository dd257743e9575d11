"""The time of a training step's exchange beside Gloo's all-reduce, in one run on loopback.

    python -m tests.benchmarks.ddp_step [--ranks 3] [--megabytes 25] [--buckets 2] [--turns 15]
    python -m tests.benchmarks.ddp_step --device cuda --ranks 2
    python -m tests.benchmarks.ddp_step --own --ranks 4 --turns 100
    python -m tests.benchmarks.ddp_step --memory --ranks 8 --buckets 4

With `--own` it is the hook's own cost: `local` exchanges nothing, as a hook that does nothing. With
`--memory` it is the peak of a rank's memory above that with a hook that does nothing, in multiples
of the gradient, with 30 % of the datagrams lost.

Each rank is a process. All kinds take turns in each process; a turn is one backward pass of a model
that computes next to nothing. It prints the median of each kind's seconds and their range, and the
median and range of the turns' ratios to Gloo; the same of all ranks' processor time. The slowest
rank counts.
"""

import argparse
import ctypes
import math
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from testbed.ddp import BoundedLoss
from testbed.transport import preset
from tests.ddp.ranks import launch, values

# DDP's own all-reduce; a hook that does nothing; ours.
KINDS: dict[str, dict[str, Any] | None] = {
    "gloo": None,
    "no exchange": {},
    "local": {"mode": "local"},
    "reliable, sharded": {"mode": "reliable", "collective": "sharded"},
    "reliable, server": {"mode": "reliable", "collective": "server"},
    "bounded, sharded": {"protocol": "dblp", "collective": "sharded"},
    "bounded, server": {"protocol": "dblp", "collective": "server"},
    "reliable, bbr": {"protocol": preset("none", congestion_control="bbr"), "mode": "reliable"},
    "bounded, bbr": {"protocol": preset("dblp", congestion_control="bbr")},
    "reliable, unpaced": {"protocol": preset("none"), "mode": "reliable", "rate_bps": math.inf},
    "bounded, unpaced": {"protocol": preset("dblp"), "rate_bps": math.inf},
}
COLLECTIVES = ("sharded", "server")
WARM_UP = 4


class Rows(nn.Module):
    """Parameters of one bucket each."""

    def __init__(self, buckets: int, elements: int) -> None:
        super().__init__()
        self.rows = nn.ParameterList(torch.zeros(elements) for _ in range(buckets))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return torch.stack([(row * factor).sum() for row in self.rows]).sum()


def nothing(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Keeps each rank's own gradient."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def peak_bytes(rank: int, buckets: int, megabytes: float, settings: dict[str, Any] | None) -> int:
    """The most memory that this process has occupied, after a few steps."""
    # Else glibc decides meanwhile which memory it gives back, and the peak is of that.
    m_mmap_threshold = -3
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 20)
    ddp = wrapped_rows(buckets, megabytes)
    if settings:
        draws = np.random.default_rng(rank)
        state = BoundedLoss(**settings, leave_out=lambda count: draws.random(count) < 0.3)
        ddp.register_comm_hook(state, state.hook)
    elif settings is not None:
        ddp.register_comm_hook(None, nothing)
    for _ in range(WARM_UP + 2):
        ddp.zero_grad()
        ddp(torch.tensor(float(rank + 1))).backward()
    (kilobytes,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


def memory_ratios(
    ranks: int, buckets: int, megabytes: float, chosen: tuple[str, ...] = ("gloo", *COLLECTIVES)
) -> dict[str, float]:
    """It returns the highest rank's peak above that of a hook that does nothing, by kind."""
    lossy = {"protocol": preset("fixed-high", tolerance=0.4), "rate_bps": 2e9, "timeout_s": 100}
    kinds: dict[str, dict[str, Any] | None] = {
        "no exchange": {},
        "gloo": None,
        **{collective: lossy | {"collective": collective} for collective in COLLECTIVES},
    }
    common = {"within_s": 300, "buckets": buckets, "megabytes": megabytes}
    peaks = {
        kind: max(values(launch(peak_bytes, ranks, settings=kinds[kind], **common)))
        for kind in ("no exchange", *chosen)
    }
    none = peaks.pop("no exchange")
    return {kind: (peak - none) / (buckets * megabytes * 1e6) for kind, peak in peaks.items()}


def wrapped_rows(buckets: int, megabytes: float, device: str = "cpu") -> DistributedDataParallel:
    rows = Rows(buckets, int(megabytes * 1e6 / 4)).to(device)
    return DistributedDataParallel(rows, bucket_cap_mb=megabytes * 0.9e6 / 2**20)


def work(
    rank: int, buckets: int, megabytes: float, turns: int, kinds: list[str], device: str
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each turn, and of this process's processor time."""
    wrapped = {}
    for kind, settings in ((kind, KINDS[kind]) for kind in kinds):
        ddp = wrapped_rows(buckets, megabytes, device)
        if settings:
            state = BoundedLoss(**{"protocol": "none", "timeout_s": 60, **settings})
            ddp.register_comm_hook(state, state.hook)
        elif settings is not None:
            ddp.register_comm_hook(None, nothing)
        wrapped[kind] = ddp
    took_s: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for turn in range(WARM_UP + turns):
        for kind, ddp in wrapped.items():
            ddp.zero_grad()
            loss = ddp(torch.tensor(float(rank), device=device))
            dist.barrier()
            began_s, worked_s = time.perf_counter(), time.process_time()
            loss.backward()
            if device != "cpu":
                torch.cuda.synchronize()
            ended_s = time.perf_counter()
            dist.barrier()  # others may still need this rank
            if turn >= WARM_UP:
                took_s[kind].append((ended_s - began_s, time.process_time() - worked_s))
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=25.0, help="of a bucket")
    parser.add_argument("--buckets", type=int, default=2)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument(
        "--device", default="cpu", help="cpu, or cuda: the first GPU, for all ranks"
    )
    parser.add_argument("--own", action="store_true", help="only the hook's own cost")
    parser.add_argument("--memory", action="store_true", help="the peak of a rank's memory")
    arguments = parser.parse_args()
    if arguments.memory:
        for kind, ratio in memory_ratios(
            arguments.ranks, arguments.buckets, arguments.megabytes
        ).items():
            print(f"{kind:18} {ratio:.2f} x the gradient")
        return
    kinds = ["gloo", "no exchange", "local"] if arguments.own else list(KINDS)
    outcomes = launch(
        work,
        arguments.ranks,
        within_s=600,
        buckets=arguments.buckets,
        megabytes=arguments.megabytes,
        turns=arguments.turns,
        kinds=kinds,
        device=arguments.device,
    )
    slowest = show(values(outcomes))
    more = np.subtract(slowest["local"], slowest["no exchange"]) / slowest["gloo"]
    print(f"the hook's own share of gloo's step: {statistics.median(more):.1%}")


def show(
    of_ranks: list[dict[str, list[tuple[float, float]]]], beside: Sequence[str] = ("gloo",)
) -> dict[str, NDArray[np.float64]]:
    """Prints what all ranks' turns took, by kind; returns the slowest rank's seconds."""
    turns = {kind: np.array([of_rank[kind] for of_rank in of_ranks]) for kind in of_ranks[0]}
    slowest = {kind: took_s[..., 0].max(axis=0) for kind, took_s in turns.items()}
    worked = {kind: took_s[..., 1].sum(axis=0) for kind, took_s in turns.items()}
    for name, seconds in (("step", slowest), ("processor", worked)):
        for kind, took_s in seconds.items():
            line = f"{name:9} {kind:18} {_median_and_range(took_s, 4, ' s')}"
            for other in beside:
                line += f"  x {other} {_median_and_range(took_s / seconds[other], 2)}"
            print(line, flush=True)
    return slowest


def _median_and_range(values: NDArray[np.float64], digits: int, unit: str = "") -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f}{unit} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    main()
