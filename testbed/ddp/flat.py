"""A tensor by itself in the place of one of DDP's buckets."""

from collections.abc import Callable, Hashable

import torch

from testbed.ddp import plan


class Flat:
    """What a hook asks of a bucket."""

    def __init__(self, tensor: torch.Tensor, parameter: torch.Tensor) -> None:
        """`parameter` stands for the bucket's parameters."""
        self._tensor, self._parameter = tensor, parameter

    def buffer(self) -> torch.Tensor:
        return self._tensor

    def parameters(self) -> list[torch.Tensor]:
        return [self._parameter]


class Flats:
    """Makes buckets of tensors that are others in each step.

    What is owed is kept by parameter, and such a tensor has none. So each name has a tensor without
    memory, which stands for whatever comes under that name and is of the same size.
    """

    def __init__(self) -> None:
        self._parameters: dict[tuple[Hashable, int], torch.Tensor] = {}

    def of(self, tensor: torch.Tensor, name: Hashable) -> Flat:
        """InputError for a tensor that cannot be sent."""
        plan.require_plain(tensor)
        flat = tensor.detach().view(-1)
        key = (name, flat.numel())
        if key not in self._parameters:
            self._parameters[key] = torch.empty(flat.numel(), device="meta")
        return Flat(flat, self._parameters[key])


def at_the_end_of_backward(call: Callable[[], None]) -> None:
    """Calls it when the backward pass that is under way has ended, as DDP's and FSDP's own last
    calls are; at once where there is none."""
    if torch._C._current_graph_task_id() < 0:
        call()
    else:
        torch.autograd.Variable._execution_engine.queue_callback(call)
