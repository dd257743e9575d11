"""Users make a `BoundedLoss`: a hook for DistributedDataParallel and FSDP2, or for one tensor."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from testbed.ddp.settings import Settings
from testbed.ddp.steps import Steps, require_plain
from testbed.shared.input_error import InputError, shown


def at_the_end_of_backward(call: Callable[[], None]) -> None:
    """Calls it as DDP's own last call is, when the backward pass has ended; at once without one."""
    if torch._C._current_graph_task_id() < 0:
        call()
    else:
        torch.autograd.Variable._execution_engine.queue_callback(call)


class BoundedLoss(Steps):
    """Averages gradients over bounded-loss transfers, in place of DDP's all-reduce.

    Make one on all ranks, in the same order, for each DistributedDataParallel (`hook`), each model
    that FSDP2 shards (`hook_into`), or each tensor that is averaged by itself (`average`):

        state = BoundedLoss("dblp")
        ddp.register_comm_hook(state, state.hook)

    All replicas stay identical: gradients may lose a bounded share on their way to the rank that
    averages them, and the mean then reaches all ranks complete (unless `broadcast_tolerance` is
    set). Until the buckets are known (the first two steps), and wherever they change, the process
    group averages, without loss.

    `Settings` describes the arguments. Those in the environment variable BOUNDED_LOSS, a JSON
    object, replace them. There `hook` may name one of PyTorch's own, which then averages instead.

    Attributes:
        critical: whether protocols such as dblp tolerate less loss in what this rank receives.
            True at the start; `phase` sets it, or you do.
        scale: by what gradients are multiplied, as by a `GradScaler`; set it before each backward
            pass, unless `scaler` is given. Residuals follow it.
        last: the report of the latest step; None before the first has ended.
    """

    _use = ""  # the method that is in use

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """For `register_comm_hook`, which calls it with each bucket of a backward pass.

        That ends when all means are there. It raises PeerLost, which names the rank, when one has
        failed, and InputError for a gradient that cannot be sent.
        """
        with self._guarded():
            self._use_as("hook")
            sizes = {parameter: parameter.numel() for parameter in bucket.parameters()}
            came_s = time.monotonic()
            taken = self._take(bucket.buffer(), sizes, bucket)
            if bucket.is_last():
                self._announcer.all_posted()
                # A hook of PyTorch's may have waited in `_take`, or wait before, at the same end.
                at_the_end_of_backward(
                    partial(self._end_backward, came_s if self._torch_hook is not None else None)
                )
        return taken.future

    def hook_into(self, model: torch.nn.Module) -> None:
        """Averages over the replicas what FSDP2 has reduced among the shards of each.

        `model` is what `fully_shard` was given last, with the mesh of its shards alone; `group` is
        the group of the replicas. The backward pass waits for each mean, and raises as `hook` does.
        InputError where mesh and group do not fit.
        """
        self._use_as("hook_into")
        for place, module in enumerate(_fsdp_modules(model, self._rendezvous.group)):
            module.set_all_reduce_hook(partial(self._of_shards, place))

    def average(self, tensor: torch.Tensor) -> None:
        """Puts the mean of all ranks' tensors in its place, as a step with one bucket of one size.

        It raises as `hook` does.
        """
        with self._guarded():
            self._use_as("average")
            mean = tensor.detach().clone()  # the caller's stays as it is where this raises
            self._average(mean, 0)
            self._end_step()
            tensor.detach().copy_(mean)

    def resynchronise(self, model: torch.nn.Module) -> None:
        """Gives all ranks the parameters and buffers of the group's first, between two steps.

        With a `broadcast_tolerance` call it on all ranks, every so many steps. What an optimiser
        keeps stays each rank's own.
        """
        group = self._rendezvous.group
        first = dist.get_global_rank(group, 0)
        for tensor in model.state_dict().values():
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # a rank's shard
            dist.broadcast(local, first, group=group)

    def _of_shards(self, place: int, reduced: torch.Tensor) -> None:
        """FSDP calls it in the backward pass, once for each module that has gradients."""
        with self._guarded():
            if not self._buckets:
                at_the_end_of_backward(self._end_backward)
            self._average(reduced, place)

    def _end_backward(self, since_s: float | None = None) -> None:
        with self._guarded():
            self._end_step(since_s)

    def _average(self, tensor: torch.Tensor, name: int) -> None:
        require_plain(tensor)
        flat = tensor.detach().view(-1)
        # The tensor is another one in each step, so its residual has a name instead.
        taken = self._take(flat, {(name, flat.numel()): flat.numel()})
        self._await([taken])
        # On a GPU, the stream that calls waits for the mean.
        flat.copy_(taken.future.wait())

    def _use_as(self, use: str) -> None:
        """InputError where it has another use already: its buckets are those of one."""
        if self._torch_hook is not None and use != "hook":
            raise InputError(f"{use}: PyTorch's own hooks are for DistributedDataParallel alone")
        self._use = self._use or use
        if use != self._use:
            raise InputError(
                f"{use}: this BoundedLoss is in use by {self._use}; valid: one for each use"
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals, for its own checkpoint between two steps."""
        state = self._residuals.state(self._rendezvous.rank, self._rendezvous.world)
        if self.detector is None:
            return state
        return {**state, "phase": self.detector.state(), "step": self._steps_before + self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the `state_dict` of the same rank of as many; InputError for another."""
        self._residuals.load(state, self._rendezvous.rank, self._rendezvous.world)
        phase = state.get("phase")
        if self.detector is not None and phase is not None:
            try:
                self.detector.restore(phase)
                self._steps_before = state["step"] - self._step
            except (KeyError, TypeError):
                raise InputError("the state is of another detector of phases") from None
            self.critical = bool(self.detector.critical)


Settings.__init__.__doc__ = Settings.__doc__  # `help(BoundedLoss)` shows both


def _fsdp_modules(model: torch.nn.Module, group: dist.ProcessGroup) -> list[Any]:
    """Returns what `fully_shard` was given; InputError where means would be wrong."""
    from torch.distributed.fsdp import FSDPModule  # a second to import, which others need not wait
    from torch.distributed.tensor import DTensor

    if not isinstance(model, FSDPModule):
        kind = shown(type(model).__name__)
        raise InputError(f"the model is {kind}, which is not sharded; valid: after fully_shard")
    replicas = set(dist.get_process_group_ranks(group))
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            if parameter.requires_grad:
                raise InputError(
                    f"the parameter {name} is not sharded, so nobody would average its gradient; "
                    "valid: all in a module that fully_shard was given"
                )
            continue
        if any(placement.is_replicate() for placement in parameter.placements):
            raise InputError(
                f"the parameter {name} is replicated by FSDP itself, which averages over the "
                "replicas before us; valid: fully_shard with the shards' dimension of the mesh "
                "alone, as mesh['shard']"
            )
        both = replicas & set(parameter.device_mesh.mesh.flatten().tolist())
        if len(both) > 1:
            raise InputError(
                f"the ranks {sorted(both)} hold different parts of the parameter {name} and are in "
                "the same group; valid: the group of the replicas, as "
                "group=mesh['replicate'].get_group()"
            )
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
