"""The server's arithmetic: the plain sum and mean, in the workers' rank order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def sum_into(gradients: Sequence[NDArray[np.float32]], out: NDArray[np.float32]) -> None:
    """Write the sum of equally long vectors to `out`.

    The order of additions is fixed, so that any reliable transport gives the same bits.
    """
    np.copyto(out, gradients[0])
    for gradient in gradients[1:]:
        out += gradient


def mean_into(gradients: Sequence[NDArray[np.float32]], out: NDArray[np.float32]) -> None:
    """Write the mean of equally long vectors to `out`, likewise."""
    sum_into(gradients, out)
    out /= np.float32(len(gradients))
