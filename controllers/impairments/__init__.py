"""Impairments by kind: what can be done to the network, and its typed parameters.

To add one: write `controllers/impairments/NAME.py` with an `ImpairmentParameters` subclass (its
`kind` is a `Literal`) and an `Impairment` subclass (`begin`, `end`, `effect`; `self.lab` is what it
may use), then add both to `KINDS` and the parameters to `AnyImpairment`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from controllers.impairments.background import Background, BackgroundParameters
from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.blackout import Blackout, BlackoutParameters
from controllers.impairments.burst import Burst, BurstParameters
from controllers.impairments.crash import Crash, CrashParameters
from controllers.impairments.host_burst import HostBurst, HostBurstParameters
from controllers.impairments.link_down import LinkDown, LinkDownParameters
from controllers.impairments.loss import Loss, LossParameters
from controllers.impairments.police import Police, PoliceParameters
from controllers.impairments.queue import Queue, QueueParameters
from controllers.impairments.straggler import Straggler, StragglerParameters

KINDS: dict[str, tuple[type[ImpairmentParameters], type[Impairment[Any]]]] = {
    "loss": (LossParameters, Loss),
    "burst": (BurstParameters, Burst),
    "police": (PoliceParameters, Police),
    "blackout": (BlackoutParameters, Blackout),
    "queue": (QueueParameters, Queue),
    "link-down": (LinkDownParameters, LinkDown),
    "host-burst": (HostBurstParameters, HostBurst),
    "background": (BackgroundParameters, Background),
    "straggler": (StragglerParameters, Straggler),
    "crash": (CrashParameters, Crash),
}

AnyImpairment = Annotated[
    LossParameters
    | BurstParameters
    | PoliceParameters
    | BlackoutParameters
    | QueueParameters
    | LinkDownParameters
    | HostBurstParameters
    | BackgroundParameters
    | StragglerParameters
    | CrashParameters,
    Field(discriminator="kind"),
]

__all__ = [
    "KINDS",
    "AnyImpairment",
    "Effect",
    "Impairment",
    "ImpairmentParameters",
    "LabAccess",
]
