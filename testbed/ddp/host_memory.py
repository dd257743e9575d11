"""The processor's memory in which gradients and means of a GPU stand meanwhile."""

import numpy as np
import torch
from numpy.typing import NDArray


class HostMemory:
    """Gradients as the transport takes them.

    Those of a GPU go into pinned memory, one place for each bucket: into other memory the driver
    copies in small pieces, and new memory must be zeroed first.
    """

    def __init__(self) -> None:
        self._places: dict[int, torch.Tensor] = {}

    def values(self, index: int, gradient: torch.Tensor) -> NDArray[np.float32]:
        """A bucket's. A GPU's stay as they are until its mean is written there."""
        if not gradient.is_cuda:
            return gradient.detach().to("cpu", torch.float32).numpy()
        place = self._places.get(index)
        if place is None or place.numel() != gradient.numel():
            place = torch.empty(gradient.numel(), dtype=torch.float32, pin_memory=True)
            self._places[index] = place
        # It returns when the gradient has been written by its stream, and read.
        return place.copy_(gradient.detach()).numpy()
