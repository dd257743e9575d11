"""PyTorch's own communication hooks in the place of ours, to compare.

The table `HOOKS` names them. To add one: a line there, with what makes `hook(bucket) -> Future`.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from testbed.ddp.report import StepLog, StepReport, bucket_report
from testbed.ddp.rounds import Rounds

Hook = Callable[[dist.GradBucket], "torch.futures.Future[torch.Tensor]"]


def _power_sgd(group: dist.ProcessGroup, **options: int) -> Hook:
    rank, first = options["rank"], options["from_step"]
    state = powerSGD_hook.PowerSGDState(group, rank, start_powerSGD_iter=first)

    def hook(bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        # It waits for collectives in Gloo's own threads. With two buckets all of these would wait.
        future.wait()
        return future

    return hook


# Each with its options and their defaults.
HOOKS: dict[str, tuple[Callable[..., Hook], dict[str, int]]] = {
    "gloo": (lambda group: partial(default_hooks.allreduce_hook, group), {}),
    "fp16_compress": (lambda group: partial(default_hooks.fp16_compress_hook, group), {}),
    "powerSGD": (_power_sgd, {"rank": 1, "from_step": 10}),
}


class TorchHook:
    """One of PyTorch's hooks, whose steps are announced as rounds, logged and reported."""

    def __init__(self, hook: Hook, rounds: Rounds, log: StepLog) -> None:
        self._hook = hook
        self._rounds = rounds
        self._log = log
        self._step = 0
        # With each one's gradient, and when it came.
        self._under_way: list[tuple[torch.futures.Future[torch.Tensor], torch.Tensor, float]] = []

    def take(self, bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":
        """Gives a bucket to the hook."""
        if not self._under_way:
            self._rounds.begin(legs=False)
        gradient, came_s = bucket.buffer(), time.monotonic()
        future = self._hook(bucket)
        self._under_way.append((future, gradient, came_s))
        return future

    def end_step(self) -> StepReport:
        """Waits for all buckets, as DDP does next; reports what can be known of such a hook."""
        began_s, buckets = time.monotonic(), []
        under_way, self._under_way = self._under_way, []
        for index, (future, gradient, came_s) in enumerate(under_way):
            future.wait()
            buckets.append(bucket_report(index, gradient, [], time.monotonic() - came_s))
        self._rounds.end()
        report = StepReport(
            step=self._step,
            carried_by="process group",
            buckets=tuple(buckets),
            wait_s=time.monotonic() - began_s,
        )
        self._log.write(report, [])
        self._step += 1
        return report
