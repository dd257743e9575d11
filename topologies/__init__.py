"""Topologies by name, or by the path of a file: parameters from YAML in, Mininet `Topo` out.

Each file holds two names: `Parameters`, a `TopologyParameters` with whatever else the topology
has, and `Topology`, a `LabTopo` (or any Mininet `Topo`) whose `build(parameters)` adds hosts,
switches and links. To add one to the project: write `topologies/NAME.py` and add NAME below. To
use one of your own: `topology: {name: ./mytopo.py, ...}`, relative to the experiment's file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from topologies import custom
from topologies.parameters import LinkParameters, TopologyParameters

NAMES = ("star", "dumbbell", "leaf-spine", "fat-tree", "two-datacentres")

__all__ = ["NAMES", "LinkParameters", "TopologyParameters", "build", "parse"]


def parse(given: Any, *, folders: Sequence[Path] = ()) -> TopologyParameters:
    """The parameters of the topology that a mapping from YAML describes, tried by building it.

    Args:
        given: the mapping; its `name` is one of `NAMES` or the path of a Python file.
        folders: where a relative path is looked for, in this order; by default here.

    Raises:
        ValidationError: with one problem per key.
        ValueError: the topology cannot be built.
    """
    if isinstance(given, TopologyParameters):
        return given
    if not isinstance(given, Mapping):
        raise ValueError("must be a mapping of keys to values")
    name = given.get("name")
    if isinstance(name, str) and custom.is_path(name):
        file = custom.read(name, folders or (Path(),), given.get("sha256"))
        given = {**given, "name": str(file.path), "sha256": file.sha256}
    elif name is None:
        raise _problem("name", "this key is missing")
    elif name not in NAMES:
        raise _problem("name", f"{name!r}: valid: {', '.join(NAMES)}, or the path of a .py file")
    elif given.get("sha256") is not None:
        raise _problem("sha256", "only a topology that is a file of its own has it")
    model = _module(str(given["name"])).Parameters
    try:
        parameters: TopologyParameters = model.model_validate(given)
    except ValidationError as error:
        raise _with_valid_keys(error, model) from None
    build(parameters)
    return parameters


def build(parameters: TopologyParameters) -> Any:
    """The Mininet `Topo` (a `LabTopo`) of validated parameters.

    Raises:
        ValueError: what it describes is no network of the lab; the message says why.
    """
    module = _module(parameters.name)
    if custom.is_path(parameters.name):
        return custom.build(module, parameters)
    return module.Topology(parameters)


def _module(name: str) -> Any:
    if custom.is_path(name):
        return custom.module(Path(name))
    try:
        return import_module(f"topologies.{name.replace('-', '_')}")
    except ModuleNotFoundError as error:
        raise ValueError(f"needs {error.name}, which is not installed (see ./lab check)") from None


def _problem(key: str, message: str) -> ValidationError:
    """One problem at one key; the input is not repeated in the message."""
    return ValidationError.from_exception_data("topology", [_detail((key,), message)])


def _detail(location: tuple[int | str, ...], message: str) -> InitErrorDetails:
    kind = PydanticCustomError("topology", "{text}", {"text": message})
    return InitErrorDetails(type=kind, loc=location, input={})


def _with_valid_keys(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """The same problems; unknown keys come with those that this topology has."""
    details = []
    for problem in error.errors(include_url=False):
        location, message = problem["loc"], problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            owner = LinkParameters if len(location) > 1 else model
            message = f"unknown key; valid: {', '.join(sorted(owner.model_fields))}"
        elif not isinstance(problem["input"], Mapping):
            message = f"{problem['input']!r}: {message}"
        details.append(_detail(location, message))
    return ValidationError.from_exception_data("topology", details)
