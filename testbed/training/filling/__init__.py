"""Fillings: what replaces gradients that did not arrive?

`base` says what one is. To add one: a file here and a line in `FILLINGS`; or a file of your own,
`filling: ./mine.py`. Imports numpy, `testbed.shared`, the transport and `vectors`.
"""

from __future__ import annotations

from testbed.shared.registry import Registry
from testbed.training.filling.base import (
    Buffer,
    Filling,
    Mask,
    SenderMemory,
    Unread,
    chunk_elements,
    estimate_mean,
    payload_of,
)
from testbed.training.filling.error_feedback import CommonFeedback, ErrorFeedback
from testbed.training.filling.hadamard import Hadamard
from testbed.training.filling.plain_means import WholeTensors, Zero
from testbed.training.filling.rescale import Rescale
from testbed.training.filling.signs import Signs
from testbed.training.vectors import mean_into

FILLINGS: Registry[Filling] = Registry(
    "filling",
    {
        "zero": Zero,
        "rescale": Rescale,
        "error-feedback": ErrorFeedback,
        "common-feedback": CommonFeedback,
        "whole-tensors": WholeTensors,
        "hadamard": Hadamard,
        "signs": Signs,
    },
    base=Filling,
)

# The transport knows nothing of training, so the fillings of its presets are set here. The
# published systems fill with zeros. In a gather, the workers that arrived stand in for the others.
# A broadcast has one sender, where scaling up would only add variance, so the server keeps a
# residual instead.
DEFAULT_FILLING = "zero"
PRESET_FILLINGS = {
    "dblp-stream": {"gather": "rescale", "broadcast": "error-feedback"},
    "bounded-energy": {"gather": "error-feedback", "broadcast": "common-feedback"},
    "optireduce": {"gather": "hadamard", "broadcast": "hadamard"},
    "top-k": {"gather": "error-feedback", "broadcast": "error-feedback"},
    "one-bit": {"gather": "signs", "broadcast": "signs"},
}

__all__ = [
    "DEFAULT_FILLING",
    "FILLINGS",
    "PRESET_FILLINGS",
    "Buffer",
    "Filling",
    "Mask",
    "SenderMemory",
    "Unread",
    "chunk_elements",
    "estimate_mean",
    "mean_into",
    "payload_of",
]
