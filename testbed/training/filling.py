"""What stands in for gradient elements that did not arrive."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def zero(rows: NDArray[np.uint8], received: NDArray[np.bool_]) -> None:
    """Set missing chunks to zero, as DBLP does: no rescaling, no memory.

    Args:
        rows: payload bytes, chunks x chunk_bytes, changed in place.
        received: one flag per chunk.
    """
    rows[~received] = 0
