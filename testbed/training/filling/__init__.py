"""Fillings: what stands in for gradients that did not arrive?

`base` says what one is. To add one: a file here and a line in `FILLINGS`; or a file of your own,
`filling: ./mine.py`. Imports numpy, `testbed.shared`, the transport and `vectors`.
"""

from __future__ import annotations

from testbed.shared.registry import Registry
from testbed.training.filling.base import Buffer, Filling, Mask, SenderMemory, chunk_elements
from testbed.training.filling.error_feedback import ErrorFeedback
from testbed.training.filling.previous import Previous
from testbed.training.filling.rescale import Rescale
from testbed.training.filling.zero import Zero
from testbed.training.vectors import mean_into

FILLINGS: Registry[Filling] = Registry(
    "filling",
    {
        "zero": Zero,
        "rescale": Rescale,
        "previous": Previous,
        "error-feedback": ErrorFeedback,
    },
    own="Filling",
    base=Filling,
)

# The transport knows nothing of training, so what its presets are filled with is said here; the
# published systems fill gradients with zero. Of several workers those that came stand in for the
# others; a broadcast has one sender, where scaling up only adds variance, so the server owes what a
# worker did not get.
DEFAULT_FILLING = "zero"
PRESET_FILLINGS = {"dblp-stream": {"gather": "rescale", "broadcast": "error-feedback"}}

__all__ = [
    "DEFAULT_FILLING",
    "FILLINGS",
    "PRESET_FILLINGS",
    "Buffer",
    "ErrorFeedback",
    "Filling",
    "Mask",
    "Previous",
    "Rescale",
    "SenderMemory",
    "Zero",
    "chunk_elements",
    "mean_into",
]
