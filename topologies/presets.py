"""Presets of links: the delay and loss of some common distances, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Preset = Literal["lan", "metro", "continental", "transatlantic", "lossy-wan"]

# Light in fibre takes 4.9 microseconds for a kilometre (refractive index 1.468). The wide-area
# round trips are what Verizon's service level agreement promises in the mean of a month, as others
# quote it: 45 ms between hubs of the contiguous United States, 90 ms between New York and London.
PRESETS: Mapping[str, Mapping[str, float]] = {
    "lan": {"delay_s": 0.0, "loss": 0.0},
    "metro": {"delay_s": 0.0005, "loss": 0.0},  # 100 km of fibre
    "continental": {"delay_s": 0.0225, "loss": 0.0},
    "transatlantic": {"delay_s": 0.045, "loss": 0.0},
    "lossy-wan": {"delay_s": 0.045, "loss": 0.005},  # the loss is an assumption
}
