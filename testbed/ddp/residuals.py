"""Error feedback: what was lost of a rank's gradients is added to its next ones.

It is kept by parameter, as if gradients were not scaled, so it outlives buckets, scales and
processes. A step that the optimiser skips changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from testbed.shared.input_error import InputError, shown

# No larger element is kept: sums of them over ranks and steps stay finite.
_LARGEST = 2.0**112
_KEYS = {"residuals", "rank", "world"}


class Residuals:
    """The part of a rank's gradients that no mean contains yet; always finite."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._sizes: list[int] = []
        self._values: dict[int, NDArray[np.float32]] = {}

    def slots(self, sizes: Mapping[Any, int]) -> tuple[int, ...]:
        """Numbers parameters of these sizes in the order in which they are first seen."""
        for parameter, size in sizes.items():
            if parameter not in self._numbers:
                self._numbers[parameter] = len(self._sizes)
                self._sizes.append(size)
        return tuple(self._numbers[parameter] for parameter in sizes)

    def holds(self, slots: Sequence[int]) -> bool:
        """Returns whether there is a residual of any of these parameters."""
        return any(slot in self._values for slot in slots)

    def _divided(
        self, bucket: NDArray[np.float32], slots: Sequence[int]
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Divides a bucket among its parameters."""
        begin = 0
        for slot in slots:
            end = begin + self._sizes[slot]
            yield slot, bucket[begin:end]
            begin = end

    def add_to(self, gradient: NDArray[np.float32], slots: Sequence[int], scale: float) -> None:
        """Adds the residuals of a bucket's parameters to its gradient, which is scaled."""
        for slot, part in self._divided(gradient, slots):
            residual = self._values.get(slot)
            if residual is None:
                continue
            if len(residual) != len(part):
                raise InputError(
                    f"the state that was loaded is of another model: parameter {slot} has "
                    f"{len(residual)} elements there and {len(part)} here"
                )
            part += residual if scale == 1 else _scale(residual.copy(), scale)

    def replace(self, lost: NDArray[np.float32], slots: Sequence[int], scale: float) -> None:
        """Keeps what a bucket has lost in a step, whose mean contains what was kept before.

        The memory of `lost` is kept, too.
        """
        for slot, part in self._divided(lost, slots):
            before = self._values.pop(slot, None)
            if not part.any():
                continue
            large = None
            if not (part.max() <= _LARGEST and part.min() >= -_LARGEST):  # without temporaries
                large = ~(np.abs(part) <= _LARGEST)  # or not a number
                part[large] = 0
            _scale(part, 1 / scale)
            if large is not None and before is not None:
                part[large] = before[large]
            self._values[slot] = part

    def state(self, rank: int, world: int) -> dict[str, Any]:
        """Returns it for a checkpoint, which shares this one's memory."""
        residuals = {slot: torch.from_numpy(value) for slot, value in self._values.items()}
        return {"residuals": residuals, "rank": rank, "world": world}

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
            int(slot): value.detach().to("cpu", torch.float32).numpy().copy().reshape(-1)
            for slot, value in state["residuals"].items()
        }


def _scale(values: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    """Multiplies and clips the values, in their place."""
    with np.errstate(over="ignore"):
        values *= np.float32(min(factor, _LARGEST))
    return np.clip(values, -_LARGEST, _LARGEST, out=values)
