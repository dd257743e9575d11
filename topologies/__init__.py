"""Topologies by name: each file holds one Mininet `Topo` subclass and its typed parameters.

To add one: write `topologies/NAME.py` with a pydantic model `Parameters` and a `Topo` subclass
`Topology` that takes it, and add the module's name to `NAMES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

NAMES = ("star",)


def parameters_model(name: str) -> Any:
    """The pydantic model of a topology's parameters."""
    return _module(name).Parameters


def build(name: str, parameters: Any) -> Any:
    """The Mininet `Topo` of a validated parameters object."""
    return _module(name).topology(parameters)


def _module(name: str) -> Any:
    if name not in NAMES:
        raise ValueError(f"unknown topology {name!r}; valid: {', '.join(NAMES)}")
    return import_module(f"topologies.{name.replace('-', '_')}")
