"""What a rank's gradients still owe: error feedback that outlives buckets and processes.

While an exchange lasts, a `Residual` keeps it for each part. When buckets change,
`ParameterResiduals` keeps it by parameter. A step that is skipped changes neither.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from testbed.shared.input_error import InputError, shown
from testbed.transport import PayloadLayout

# No larger element is owed: sums of them over ranks and steps stay finite.
_LARGEST = 2.0**112
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


class Residual:
    """What a rank owes of one part, as its gradients are scaled; always finite."""

    def __init__(self, layout: PayloadLayout) -> None:
        self._layout = layout
        self._rows = layout.rows(layout.new_buffer())
        self._is_nonzero = False
        # Of the step under way: which chunks of the payload have not arrived, and these.
        self._missed: tuple[NDArray[np.bool_], NDArray[np.float32]] | None = None

    @property
    def values(self) -> NDArray[np.float32]:
        """Shape (elements,)."""
        return self._layout.floats(self._rows.reshape(-1))

    @property
    def unsettled(self) -> bool:
        """Whether it changes if the step under way is applied."""
        return self._missed is not None and (self._is_nonzero or len(self._missed[1]) > 0)

    def add_to(self, payload: NDArray[np.uint8]) -> None:
        """Adds what is owed to a payload, in its place."""
        if self._is_nonzero:
            elements = self._layout.floats(payload)
            elements += self.values

    def note(self, payload: NDArray[np.uint8], received: NDArray[np.bool_] | None) -> None:
        """These chunks of the payload have arrived; None: all."""
        missing = np.zeros(len(self._rows), dtype=np.bool_) if received is None else ~received
        self._missed = missing, self._layout.rows(payload)[missing].view("<f4")

    def settle(self, *, applied: bool) -> None:
        """The step under way is over."""
        if applied and self.unsettled:
            assert self._missed is not None
            missing, missed = self._missed
            if not _within(missed):
                before = self._rows[missing].view("<f4")
                np.copyto(missed, before, where=~(np.abs(missed) <= _LARGEST))
            if self._is_nonzero:
                self._rows[~missing] = 0
            self._rows[missing] = missed.view(np.uint8)
            self._is_nonzero = len(missed) > 0
        self._missed = None

    def scale(self, factor: float) -> None:
        """Gradients are larger by this factor from now on."""
        if self._is_nonzero:
            owed = self.values
            with np.errstate(over="ignore"):  # it is clipped
                owed *= np.float32(min(factor, _LARGEST))
            if not _within(owed):
                np.clip(owed, -_LARGEST, _LARGEST, out=owed)

    def forget(self) -> None:
        """Owes nothing any more."""
        self._rows[:] = 0
        self._is_nonzero = False


def _within(elements: NDArray[np.float32]) -> bool:
    """Whether all can be owed; a NaN is not above, and not below."""
    return not elements.size or bool(
        elements.max() <= _LARGEST and elements.min() >= -_LARGEST  # without temporaries
    )


class ParameterResiduals:
    """What is to be added to the next gradient of each parameter, as if it was not scaled."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._values: dict[int, NDArray[np.float32]] = {}
        self._paying: set[int] = set()  # in the step under way

    @property
    def unsettled(self) -> bool:
        """Whether it changes if the step under way is applied."""
        return bool(self._paying)

    def settle(self, *, applied: bool) -> None:
        """The step under way is over."""
        for slot in self._paying if applied else ():
            del self._values[slot]
        self._paying = set()

    def copy(self) -> "ParameterResiduals":
        """Another with the same contents."""
        copied = ParameterResiduals(self._slots)
        copied._values = {slot: value.copy() for slot, value in self._values.items()}
        return copied

    def keep(self, slots: Sequence[int], values: NDArray[np.float32], scale: float) -> None:
        """Keeps a bucket's: the values of its parameters, one after the other, scaled so."""
        at = 0
        for slot in slots:
            size = self._slots.sizes[slot]
            part = values[at : at + size]
            if part.any():
                part = part / np.float32(scale)
                known = self._values.get(slot)
                self._values[slot] = part if known is None else known + part
            at += size

    def add_to(self, values: NDArray[np.float32], slots: Sequence[int], scale: float) -> None:
        """Adds what a bucket's parameters owe to its gradient, which is scaled so, in its place."""
        at = 0
        for slot in slots:
            size = self._slots.sizes[slot]
            owed = self._values.get(slot)
            if owed is not None:
                if len(owed) != size:
                    raise InputError(
                        f"the state that was loaded is of another model: parameter {slot} has "
                        f"{len(owed)} elements there and {size} here"
                    )
                values[at : at + size] += owed * np.float32(scale)
                self._paying.add(slot)
            at += size

    def state(self, rank: int, world: int) -> dict[str, Any]:
        """For a checkpoint; it shares this one's memory."""
        owed = {slot: torch.from_numpy(value) for slot, value in self._values.items()}
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
