"""What users make: the hook for `DistributedDataParallel` and FSDP2, and averages of one tensor."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from testbed.ddp import plan, settings
from testbed.ddp.rendezvous import Return
from testbed.ddp.settings import Collective, Mode
from testbed.ddp.steps import Scaler, Steps
from testbed.shared.input_error import InputError, shown
from testbed.training.detector import Detector
from testbed.transport import ProtocolConfig
from testbed.transport.settings import LeaveOut


@dataclass(frozen=True)
class _Flat:
    """A tensor by itself in the place of one of DDP's buckets."""

    tensor: torch.Tensor
    parameter: torch.Tensor

    def buffer(self) -> torch.Tensor:
        return self.tensor

    def parameters(self) -> list[torch.Tensor]:
        return [self.parameter]


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
    averages them, and the mean then reaches all ranks complete. Until the buckets are known (the
    first two steps), and wherever they change, the process group averages, without loss.

    Arguments in the environment variable BOUNDED_LOSS, a JSON object, count in place of these.
    There `hook` may name one of PyTorch's own hooks, which then averages instead.

    Attributes:
        critical: whether training is critical, where protocols such as dblp tolerate less loss; of
            what this rank receives. True at the start; `phase` sets it, or you do.
        scale: by what gradients are multiplied, as by a `GradScaler`; set it before each backward
            pass, unless `scaler` is given. What is owed follows it.
        last: the report of the latest step; None before the first has ended.
    """

    def __init__(
        self,
        protocol: str | ProtocolConfig = "dblp",
        *,
        group: dist.ProcessGroup | None = None,
        collective: Collective = "sharded",
        mode: Mode = "bounded",
        filling: str = "error-feedback",
        rate_bps: float | None = None,
        queue_bytes: float = math.inf,
        interface: str | None = None,
        port: int | None = None,
        timeout_s: float | None = None,
        insecure: bool = False,
        chunk_bytes: int | None = None,
        transfers_in_flight: int = 4,
        segmentation: bool = True,
        leave_out: LeaveOut | None = None,
        late_share: float = 0.0,
        min_ranks: int | None = None,
        phase: str | Detector | None = None,
        returns: Return | None = None,
        scaler: Scaler | None = None,
    ) -> None:
        """Meets the other ranks.

        Args:
            protocol: a preset's name, or what `testbed.transport.preset` returns. Its tolerance of
                the gather counts; means are never lost.
            group: the process group of the replicas; None: the default one.
            collective: `sharded`: each rank averages a part of each bucket; `server`: rank 0 all.
            mode: `bounded`; `reliable`: no loss; `local`: nothing is sent, to measure the exchange.
            filling: what stands for lost gradients: `error-feedback` (they are added to the next
                step's), `zero`, `rescale`.
            rate_bps: of a rank's link, bits per second; math.inf: unpaced. None: a preset of a
                fixed rate gets `bbr`, or is unpaced where all ranks are on this machine.
            queue_bytes: the smallest queue on the way, if known; see `EndpointConfig`.
            interface: this rank's network interface. None: GLOO_SOCKET_IFNAME, or else the one that
                leads to MASTER_ADDR.
            port: the first one: of a machine's ranks for control messages, one each, then of all of
                them for data. None: free ones.
            timeout_s: within it all ranks raise when one fails; one that answers may be late by
                half of it. None: the timeout of the process group.
            insecure: lets ranks on several machines exchange without keys.
            chunk_bytes: what a datagram carries: the unit of loss. None: what fits the MTU.
            transfers_in_flight: how many buckets may be under way at once.
            segmentation: see `EndpointConfig`; False where queues are to hold single packets.
            leave_out: for experiments; see `EndpointConfig`.
            late_share: in how many of the last 100 buckets a rank's gradient may be left out
                because it takes much longer than recent ones; it is owed.
            min_ranks: the fewest ranks, rank 0 among them, that go on when others are lost; with
                `server` alone. None: all are needed.
            phase: what sets `critical`: `gradient-norm` (DBLP's rule, every ten steps), or a
                `Detector` of `testbed.training.detector`, which sees the mean's norm alone. All
                ranks agree. None: the script does.
            returns: for a rank that was lost, and now comes back (`come_back`).
            scaler: the `torch.amp.GradScaler`, whose scale is read at each step's first bucket.

        Raises:
            InputError: one line, the same on all ranks, where one cannot take part or they differ.
            PeerLost: a rank does not come in time.
        """
        checked, instead = settings.resolve(protocol, locals())
        if returns is not None and (checked.min_ranks is None or instead is not None):
            raise InputError("returns: valid with min_ranks, as the others have it")
        if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
            raise InputError(f"scaler is {shown(scaler)}; valid: a GradScaler, or None")
        super().__init__(checked, instead, group, returns, scaler)
        # What is owed is kept by parameter. A tensor by itself is another one in each step and has
        # none, so one without memory stands for whatever has the same name and size.
        self._stand_ins: dict[tuple[int, int], torch.Tensor] = {}
        self._use = ""

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """For `register_comm_hook`, which calls it with each bucket of a backward pass.

        That ends when all means are there. It raises PeerLost, which names the rank, when one has
        failed, and InputError for a gradient that cannot be sent.
        """
        if self._instead is not None:
            future = self._instead.take(bucket)
            if bucket.is_last():
                at_the_end_of_backward(self._end_instead)
            return future
        with self._guarded():
            self._use_as("hook")
            taken = self._take(bucket)
            if bucket.is_last():
                self._rounds.all_posted()
                at_the_end_of_backward(self._end_backward)
        return taken.future

    def hook_into(self, model: torch.nn.Module) -> None:
        """Averages over the replicas what FSDP2 has reduced among the shards of each.

        `model` is what `fully_shard` was given last, with the mesh of its shards alone; `group` is
        the group of the replicas. The backward pass waits for each mean, and raises as `hook` does.
        InputError where mesh and group do not fit.
        """
        self._use_as("hook_into")
        assert self._rendezvous.group is not None
        for place, module in enumerate(_fsdp_modules(model, self._rendezvous.group)):
            module.set_all_reduce_hook(partial(self._of_shards, place))

    def average(self, tensor: torch.Tensor) -> None:
        """Puts the mean of all ranks' tensors, of the same size in each call, in its place.

        It is a step with one bucket, and raises as `hook` does.
        """
        with self._guarded():
            self._use_as("average")
            mean = tensor.detach().clone()  # the caller's stays as it is where this raises
            self._average(mean, 0)
            self._end_step()
            tensor.detach().copy_(mean)

    def _of_shards(self, place: int, reduced: torch.Tensor) -> None:
        """What FSDP calls in the backward pass, once for each module that has gradients."""
        with self._guarded():
            if not self._buckets:
                at_the_end_of_backward(self._end_backward)
            self._average(reduced, place)

    def _end_backward(self) -> None:
        with self._guarded():
            self._end_step()

    def _end_instead(self) -> None:
        assert self._instead is not None
        self.last = self._instead.end_step()

    def _average(self, tensor: torch.Tensor, name: int) -> None:
        plan.require_plain(tensor)
        flat = tensor.detach().view(-1)
        stand_in = torch.empty(flat.numel(), device="meta")
        stand_in = self._stand_ins.setdefault((name, flat.numel()), stand_in)
        taken = self._take(_Flat(flat, stand_in))
        self._await([taken])
        # On a GPU, the stream that calls waits for the mean.
        tensor.detach().view(-1).copy_(taken.future.wait())

    def _use_as(self, use: str) -> None:
        """InputError where it has another use already: its buckets are those of one."""
        if self._instead is not None:
            raise InputError(f"{use}: PyTorch's own hooks are for DistributedDataParallel alone")
        self._use = self._use or use
        if use != self._use:
            raise InputError(
                f"{use}: this BoundedLoss is in use by {self._use}; valid: one for each use"
            )

    def state_dict(self) -> dict[str, Any]:
        """What this rank's gradients still owe, for its own checkpoint between two steps."""
        state = self._all_residuals().state(self._rendezvous.rank, self._rendezvous.world)
        return state if self._detector is None else {**state, "phase": self._detector.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Owes what a `state_dict` of the same rank of as many says; InputError for another."""
        self._residuals.load(state, self._rendezvous.rank, self._rendezvous.world)
        phase = state.get("phase")
        if self._detector is not None and phase is not None:
            try:
                self._detector.restore(phase)
            except (KeyError, TypeError):
                raise InputError("the state is of another detector of phases") from None
            self.critical = bool(self._detector.critical)
        for residual in self._exchange.residuals if self._exchange is not None else ():
            residual.forget()


def _fsdp_modules(model: torch.nn.Module, group: dist.ProcessGroup) -> list[Any]:
    """All that `fully_shard` was given, `model` first; InputError where means would be wrong."""
    from torch.distributed.fsdp import FSDPModule  # a second to import, which others need not wait
    from torch.distributed.tensor import DTensor

    if not isinstance(model, FSDPModule):
        raise InputError(
            f"the model is {shown(type(model).__name__)}, which is not sharded; valid: what "
            "fully_shard was given last"
        )
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
