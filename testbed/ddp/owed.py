"""What a rank's gradients still owe: error feedback that outlives buckets and processes.

Buckets change after the first step, and a process that begins anew has other ones than the process
before. So what is owed is kept by parameter. A parameter's number is its place in the first step,
which is the same whenever the same script begins.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from testbed.shared.input_error import InputError, shown

_KEYS = {"owed", "rank", "world"}


class Slots:
    """Numbers the parameters in the order in which they are first seen."""

    def __init__(self) -> None:
        self._numbers: dict[torch.Tensor, int] = {}
        self.sizes: list[int] = []

    def of(self, parameters: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Their numbers."""
        for parameter in parameters:
            if parameter not in self._numbers:
                self._numbers[parameter] = len(self.sizes)
                self.sizes.append(parameter.numel())
        return tuple(self._numbers[parameter] for parameter in parameters)


class Owed:
    """What is to be added to the next gradient of each parameter."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._values: dict[int, NDArray[np.float32]] = {}

    def copy(self) -> "Owed":
        """Another with the same contents."""
        copied = Owed(self._slots)
        copied._values = {slot: each.copy() for slot, each in self._values.items()}
        return copied

    def keep(self, slots: Sequence[int], values: NDArray[np.float32]) -> None:
        """Keeps a bucket's: the values of its parameters, one after the other."""
        at = 0
        for slot in slots:
            size = self._slots.sizes[slot]
            part = values[at : at + size]
            if part.any():
                known = self._values.get(slot)
                self._values[slot] = part.copy() if known is None else known + part
            at += size

    def added(self, slots: Sequence[int], values: NDArray[np.float32]) -> NDArray[np.float32]:
        """A bucket's gradient with what its parameters owe, which is then no longer kept."""
        if not self._values.keys() & set(slots):
            return values
        values, at = values.copy(), 0
        for slot in slots:
            size = self._slots.sizes[slot]
            owed = self._values.pop(slot, None)
            if owed is not None:
                if len(owed) != size:
                    raise InputError(
                        f"the state that was loaded is of another model: parameter {slot} has "
                        f"{len(owed)} elements there and {size} here"
                    )
                values[at : at + size] += owed
            at += size
        return values

    def state(self, rank: int, world: int) -> dict[str, Any]:
        """For a checkpoint."""
        owed = {slot: torch.from_numpy(each.copy()) for slot, each in self._values.items()}
        return {"owed": owed, "rank": rank, "world": world}

    def load(self, state: Mapping[str, Any], rank: int, world: int) -> None:
        """Takes the result of `state`, in place of all that is kept."""
        if not isinstance(state, Mapping) or set(state) - {"phase"} != _KEYS:
            raise InputError(
                f"{shown(state)} is no state of BoundedLoss; valid: what state_dict() returned"
            )
        if (state["rank"], state["world"]) != (rank, world):
            raise InputError(
                f"the state is of rank {state['rank']} of {state['world']}, and this is rank "
                f"{rank} of {world}; valid: each rank's own"
            )
        self._values = {
            int(slot): each.detach().to("cpu", torch.float32).numpy().copy().reshape(-1)
            for slot, each in state["owed"].items()
        }
