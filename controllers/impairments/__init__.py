"""Impairments by kind: what can be done to the network, and its typed parameters.

To add one: write `controllers/impairments/NAME.py` with a `Parameters` model (its `kind` is a
`Literal`) and an `Impairment` subclass, then add both to `KINDS`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, Switches
from controllers.impairments.burst import Burst, BurstParameters
from controllers.impairments.loss import Loss, LossParameters

KINDS: dict[str, tuple[type[ImpairmentParameters], type[Impairment[Any]]]] = {
    "loss": (LossParameters, Loss),
    "burst": (BurstParameters, Burst),
}

AnyImpairment = Annotated[LossParameters | BurstParameters, Field(discriminator="kind")]

__all__ = [
    "KINDS",
    "AnyImpairment",
    "Effect",
    "Impairment",
    "ImpairmentParameters",
    "Switches",
]
