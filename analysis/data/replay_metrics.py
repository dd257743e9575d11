"""The metrics of a detector that was asked again: their names and meanings.

A name is `replayed.SOURCE.QUANTITY`; `detector_replay` says what the sources of norms are, and has
the values. A run has these metrics only where its detector was replayed.
"""

from __future__ import annotations

from typing import Any

PREFIX = "replayed."
RELIABLE, BEFORE_LOSS = "reliable", "before_loss"
LOSSLESS = (RELIABLE, BEFORE_LOSS)
_NORMS_OF = {
    RELIABLE: "the gradients of the run with the same seed whose arm gave up nothing",
    BEFORE_LOSS: "its own gradients before loss",
}
_QUANTITIES = {
    "critical": ("Critical", "the run's detector calls critical when it is shown {}"),
    "missed": ("Missed", "not critical in the run, but critical when its detector is shown {}"),
    "invented": ("Invented", "critical in the run, but not when its detector is shown {}"),
}
NAMES = [f"{PREFIX}{source}.{quantity}" for source in LOSSLESS for quantity in _QUANTITIES]


def fields(name: str) -> dict[str, Any] | None:
    """What describes a metric of these; None for a name of another form."""
    if name not in NAMES:
        return None
    source, _, quantity = name.removeprefix(PREFIX).partition(".")
    label, meaning = _QUANTITIES[quantity]
    return {
        "name": name,
        "label": f"{label}, by the norms {source.replace('_', ' ')}",
        "unit": "share",
        "meaning": f"share of the rounds: {meaning.format(_NORMS_OF[source])}",
        "absent": "the detectors of this arm's runs were not replayed",
        "optional": True,
    }
