"""Topologies: parameters from YAML in, Mininet `Topo` out.

To add one: a file here with `Parameters`, a `TopologyParameters` with whatever else the topology
has, and `Topology`, a `LabTopo` (or any Mininet `Topo`) whose `build(parameters)` or `build()` adds
hosts, switches and links; and a line in `TOPOLOGIES`. Or a file of your own with the same two
names, `topology: {name: ./mine.py}`; `plain` adapts a `Topo` that was written for Mininet alone.
Imports Mininet (when a topology is used) and `testbed.shared`.
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
        "star": "topologies.star:Topology",
        "dumbbell": "topologies.dumbbell:Topology",
        "leaf-spine": "topologies.leaf_spine:Topology",
        "fat-tree": "topologies.fat_tree:Topology",
        "clos": "topologies.clos:Topology",
        "two-datacentres": "topologies.two_datacentres:Topology",
        "graph": "topologies.graph:Topology",
    },
    own="Topology",
    base="mininet.topo:Topo",
)

__all__ = ["TOPOLOGIES", "AnyTopology", "LinkParameters", "TopologyParameters", "build", "parse"]


def build(parameters: TopologyParameters) -> Any:
    """The Mininet `Topo` (a `LabTopo`) of validated parameters.

    A ValueError says why what it describes is no network of the lab.
    """
    from topologies import plain

    kind: Any = TOPOLOGIES.entry(parameters.name)
    if parameters.name in TOPOLOGIES:
        built = plain.construct(kind, parameters)
        built.refuse_core_without_links()
        return built
    # A user's own may read `core` for links of whatever sort.
    with own_code.explained(own_code.split(parameters.name)[0]):
        return plain.construct(kind, parameters)


def parse(given: Any) -> TopologyParameters:
    """The parameters that a mapping from YAML describes, tried by building the topology.

    A ValidationError has a problem per key, a ValueError says why nothing can be built.
    """
    return _ANY.validate_python(given)


def _parameters_of(name: str) -> type[TopologyParameters]:
    """The `Parameters` of its class or file; else, the options of a plain Mininet `Topo`."""
    from topologies import plain

    kind: Any = TOPOLOGIES.entry(name)
    beside = getattr(sys.modules[kind.__module__], "Parameters", None)
    parameters = getattr(kind, "Parameters", beside) or plain.parameters_of(kind)
    if not (isinstance(parameters, type) and issubclass(parameters, TopologyParameters)):
        raise InputError(f"{name}: Parameters does not derive from TopologyParameters")
    return parameters


AnyTopology = Annotated[
    TopologyParameters,
    OneOf(TOPOLOGIES, key="name", base=TopologyParameters, model=_parameters_of, check=build),
]
_ANY: TypeAdapter[TopologyParameters] = TypeAdapter(AnyTopology)
