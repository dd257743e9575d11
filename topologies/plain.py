"""A plain Mininet `Topo` as a topology of the lab: its options become keys, its hosts get roles.

Where no host is called `server`, the hosts take the lab's names in the order in which they were
added: `server`, `worker-1`, ..., `traffic-1`, ...
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mininet.topo import Topo
from pydantic import create_model

from topologies.base import LabTopo
from topologies.settings import TopologyParameters

_HANDED_OVER = ("workers", "extra_hosts")


class PlainTopo(LabTopo):
    """Gives the hosts of a plain `Topo` their roles."""

    loss_in_percent = True

    def finish(self) -> None:
        hosts = [name for name in self.g.nodes() if not self.isSwitch(name)]
        names = self.parameters.all_host_names()
        self.roles: dict[str, str] = {}
        if "server" not in hosts:
            if len(hosts) != len(names):
                workers, extra = self.parameters.workers, self.parameters.extra_hosts
                fits = len(hosts) - 1 - extra
                raise ValueError(
                    f"it has {len(hosts)} hosts, none of them called 'server'; the server, workers "
                    f"({workers}) and extra_hosts ({extra}) are {len(names)}"
                    + (f"; workers: {fits} would fit" if fits > 0 else "")
                )
            self.roles = dict(zip(hosts, names, strict=True))
            self._rename()
        super().finish()

    def _rename(self) -> None:
        def new(name: str) -> str:
            return self.roles.get(name, name)

        for first, second in self._links:
            info = self.linkInfo(first, second)
            self.setlinkInfo(first, second, {**info, "node1": new(first), "node2": new(second)})
        self.g.node = {new(name): info for name, info in self.g.node.items()}
        self.g.edge = {
            new(name): {new(other): edge for other, edge in others.items()}
            for name, others in self.g.edge.items()
        }
        self.ports: dict[str, dict[int, tuple[str, int]]] = {
            new(name): {port: (new(other), far) for port, (other, far) in ports.items()}
            for name, ports in self.ports.items()
        }
        self._links = {
            (new(first), new(second)): link for (first, second), link in self._links.items()
        }


def construct(kind: Any, parameters: TopologyParameters) -> LabTopo:
    """Make the topology of a class and its parameters."""
    if not issubclass(kind, LabTopo):
        # The lab's checks come first; `build` and `__init__` are the class's own.
        kind = type(kind.__name__, (kind, PlainTopo), {})
    made: LabTopo = kind.__new__(kind)
    made.begin(parameters)
    options = {key: getattr(parameters, key) for key in _options(kind) if hasattr(parameters, key)}
    first = [parameters] if _takes_parameters(kind, options) else []
    made.__init__(*first, **options)  # type: ignore[misc]
    made.finish()
    return made


def parameters_of(kind: type[Topo]) -> type[TopologyParameters]:
    """Make the section of a class without `Parameters`; a plain `Topo` adds its options."""
    fields: dict[str, Any] = {}
    for name, default in _options(kind).items():
        if name in _HANDED_OVER:
            continue
        if default is inspect.Parameter.empty:
            fields[name] = (bool | int | float | str, ...)
        else:
            # In Python, whole numbers and others are not told apart by a default.
            fields[name] = (int | float if type(default) is int else type(default), default)
    if not fields:
        return TopologyParameters
    return create_model(kind.__name__, __base__=TopologyParameters, **fields)


def _options(kind: type[Topo]) -> dict[str, Any]:
    """List the options of a plain `Topo` that an experiment may set, and their defaults, if any."""
    if issubclass(kind, LabTopo) and not issubclass(kind, PlainTopo):
        return {}
    return {
        argument.name: argument.default
        for argument in _arguments(kind)
        if argument.name != "parameters"
        and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        and (
            argument.default is argument.empty
            or isinstance(argument.default, bool | int | float | str)
        )
        and (argument.name in _HANDED_OVER or argument.name not in TopologyParameters.model_fields)
    }


def _arguments(kind: type[Topo]) -> list[inspect.Parameter]:
    """List the arguments, without `self`, of the class's own `__init__` or, else, its `build`."""
    arguments = list(inspect.signature(kind.__init__).parameters.values())
    is_own = kind.__init__ is not Topo.__init__
    if not is_own or any(argument.kind is argument.VAR_POSITIONAL for argument in arguments):
        arguments = list(inspect.signature(kind.build).parameters.values())
    return arguments[1:]


def _takes_parameters(kind: type[Topo], options: Mapping[str, Any]) -> bool:
    """Tell whether it needs an argument that is no option, or has one called `parameters`."""
    return any(
        argument.name == "parameters"
        or argument.kind is argument.VAR_POSITIONAL
        or (
            argument.kind is not argument.VAR_KEYWORD
            and argument.default is argument.empty
            and argument.name not in options
        )
        for argument in _arguments(kind)
    )
