"""Topologies: parameters from YAML in, Mininet `Topo` out.

To add one: a line in `TOPOLOGIES`, and a `LabTopo` whose `build(parameters)` adds hosts, switches
and links, and whose `Parameters` has its keys. A file of your own has `Topology` and `Parameters`.
Imports Mininet, when used, and `testbed.shared`.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

from pydantic import TypeAdapter

from testbed.shared import own_code
from testbed.shared.input_error import InputError
from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry
from topologies.settings import LinkParameters, TopologyParameters

TOPOLOGIES: Registry[Any] = Registry(
    "topology",
    {
        "star": "topologies.shapes:Star",
        "dumbbell": "topologies.shapes:Dumbbell",
        "leaf-spine": "topologies.shapes:LeafSpine",
        "fat-tree": "topologies.shapes:FatTree",
        "clos": "topologies.shapes:Clos",
    },
    own="Topology",
    base="topologies.base:LabTopo",
)

__all__ = ["TOPOLOGIES", "AnyTopology", "LinkParameters", "TopologyParameters", "build", "parse"]


def build(parameters: TopologyParameters) -> Any:
    """Build the `LabTopo` of validated parameters; ValueError: it is no network of the lab."""
    kind: Any = TOPOLOGIES.entry(parameters.name)
    if parameters.name in TOPOLOGIES:
        return kind(parameters)
    with own_code.explained(own_code.split(parameters.name)[0]):
        return kind(parameters)


def parse(document: Any) -> TopologyParameters:
    """Parse a mapping from YAML, and build it; ValidationError or ValueError."""
    return _ANY.validate_python(document)


def _parameters_of(name: str) -> type[TopologyParameters]:
    kind: Any = TOPOLOGIES.entry(name)
    beside = getattr(sys.modules[kind.__module__], "Parameters", TopologyParameters)
    parameters = getattr(kind, "Parameters", beside)
    if not (isinstance(parameters, type) and issubclass(parameters, TopologyParameters)):
        raise InputError(f"{name}: Parameters does not derive from TopologyParameters")
    return parameters


AnyTopology = Annotated[
    TopologyParameters,
    OneOf(TOPOLOGIES, key="name", base=TopologyParameters, model=_parameters_of, check=build),
]
_ANY: TypeAdapter[TopologyParameters] = TypeAdapter(AnyTopology)
