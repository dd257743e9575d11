"""PyTorch's own communication hooks in the place of ours, to compare.

The table `HOOKS` names them. To add one: a line there, with what makes `hook(bucket) -> Future`.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from testbed.ddp.rounds import Rounds
from testbed.ddp.step_log import StepLog

Hook = Callable[[dist.GradBucket], "torch.futures.Future[torch.Tensor]"]


def _power_sgd(group: dist.ProcessGroup, **options: int) -> Hook:
    state = powerSGD_hook.PowerSGDState(
        group,
        matrix_approximation_rank=options["rank"],
        start_powerSGD_iter=options["from_step"],
    )

    def hook(bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        # It waits for collectives in Gloo's own threads. With two buckets all of these would wait.
        future.wait()
        return future

    return hook


# Each with its options and their defaults.
HOOKS: dict[str, tuple[Callable[..., Hook], dict[str, int]]] = {
    "gloo": (lambda group: lambda each: default_hooks.allreduce_hook(group, each), {}),
    "fp16_compress": (
        lambda group: lambda each: default_hooks.fp16_compress_hook(group, each),
        {},
    ),
    "powerSGD": (_power_sgd, {"rank": 1, "from_step": 10}),
}


class TorchHook:
    """One of PyTorch's hooks, whose steps are announced as rounds and logged."""

    def __init__(self, hook: Hook, rounds: Rounds, log: StepLog) -> None:
        self._hook = hook
        self._rounds = rounds
        self._log = log
        self._step = 0
        self._futures: list[torch.futures.Future[torch.Tensor]] = []

    def take(self, bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":
        """Gives a bucket to the hook. Who announces or logs waits for the end, as DDP does next."""
        if not self._futures:
            self._rounds.begin(legs=False)
        future = self._hook(bucket)
        self._futures.append(future)
        if bucket.is_last():
            futures, self._futures = self._futures, []
            if self._rounds.announces or self._log.writes:
                began_s = time.monotonic()
                torch.futures.wait_all(futures)
                self._rounds.end()
                self._log.write(self._step, [], time.monotonic() - began_s)
            self._step += 1
        return future
