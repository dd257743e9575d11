"""Impairments: what can be done to the network and its hosts, and the parameters of each kind.

To add one: a file here with an `ImpairmentParameters` and an `Impairment[ThoseParameters]`
(`begin`, `end`, `effect`; `self.lab` is what it may use), and a line in `KINDS`. One that asks
nothing but what `LabAccess` has in virtual time is simulated by its name in
`testbed.run.simulated_impairments`. May import `testbed.lab`, `testbed.shared`, `topologies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Annotated, Any, cast, get_args

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.host import Crash, Straggler
from controllers.impairments.link import Burst, Delay, LinkDown, Queue
from controllers.impairments.loss import Loss, SenderDrop
from controllers.impairments.trace import Trace
from controllers.impairments.traffic import Background
from testbed.shared import own_code
from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry

KINDS: Registry[Impairment[Any]] = Registry(
    "impairment",
    {
        "loss": Loss,
        "sender-drop": SenderDrop,
        "burst": Burst,
        "queue": Queue,
        "delay": Delay,
        "trace": Trace,
        "link-down": LinkDown,
        "background": Background,
        "straggler": Straggler,
        "crash": Crash,
    },
    base=Impairment,
)


def kind_of(name: str) -> type[Impairment[Any]]:
    """Find the class of a kind; InputError: there is none, or a user's own does not fit."""
    return cast(type[Impairment[Any]], KINDS.entry(name))


def parameters_of(name: str) -> type[ImpairmentParameters]:
    """Find the keys of a kind: the `Parameters` in its `Impairment[Parameters]`."""
    for ancestor in kind_of(name).__mro__:
        for base in vars(ancestor).get("__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, ImpairmentParameters):
                    return argument
    return ImpairmentParameters


def read(document: Mapping[str, Any]) -> ImpairmentParameters:
    """Read the parameters of a resolved entry of a timeline."""
    return parameters_of(document["kind"]).model_validate(document)


def make(document: Mapping[str, Any], lab: LabAccess) -> Impairment[Any]:
    """Make and prepare the impairment of a resolved entry; InputError: an own one does not fit."""
    made, parameters = kind_of(document["kind"]), read(document)
    own_file = own_code.split(document["kind"])[0]
    with nullcontext() if document["kind"] in KINDS else own_code.explained(own_file):
        impairment = made(parameters, lab)
        impairment.prepare()
    return impairment


AnyImpairment = Annotated[
    ImpairmentParameters, OneOf(KINDS, key="kind", base=ImpairmentParameters, model=parameters_of)
]

__all__ = [
    "KINDS",
    "AnyImpairment",
    "Effect",
    "Impairment",
    "ImpairmentParameters",
    "LabAccess",
    "kind_of",
    "make",
    "parameters_of",
    "read",
]
