"""FSDP2: which modules average over the replicas, and whether the mesh and the group fit."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from testbed.shared.input_error import InputError, shown


def modules_of(model: torch.nn.Module, group: dist.ProcessGroup) -> list[FSDPModule]:
    """All that `fully_shard` has been given, `model` first.

    Raises InputError where gradients would be averaged twice, by nobody, or with gradients of other
    parameters.
    """
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
        if any(each.is_replicate() for each in parameter.placements):
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
    return [each for each in model.modules() if isinstance(each, FSDPModule)]
