"""Where in an experiment a name decides which further keys there are, and their models."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pydantic import BaseModel

import topologies
from controllers.impairments import KINDS, ImpairmentParameters
from testbed.documentation import docstrings
from testbed.training import datasets, learning_rate, pace, phases

Model = type[BaseModel]
# What names something of a user's own: a file, an object in a file, an object of a module.
OWN = r"^(.*\.py(:\w+)?|.*/.*|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One such place.

    Attributes:
        path: of the section in an experiment; `[]` stands for each entry of a list.
        key: the section's key that holds the name.
        models: the sections by name.
        common: the model whose keys all of them have, if there is one.
        default: the name where the key is missing; None where it must be there.
        alone: whether the name may stand in place of the section.
        own: the model of a user's own, where a name may be a reference to one.
    """

    path: str
    key: str
    models: Mapping[str, Model]
    common: Model | None = None
    default: str | None = None
    alone: bool = False
    own: Model | None = None

    def meaning(self, name: str) -> str:
        """What a name stands for, in a sentence: its file's, where the file is about it alone."""
        model = self.models[name]
        module = inspect.getmodule(model)
        others = {each for each in self.models.values() if inspect.getmodule(each) is module}
        of_file = docstrings.first_sentence(module)
        if len(others) > 1 or not of_file:
            return docstrings.first_sentence(model)
        return re.sub(r"^`[^:]*`: ", "", of_file)


def all_choices() -> list[Choice]:
    """All places, in the order in which an experiment has them."""
    user = _union(datasets.AnyDataset, "name", "")[""]
    return [
        Choice(
            path="topology",
            key="name",
            models={name: _topology(name) for name in topologies.NAMES},
            common=topologies.TopologyParameters,
            own=topologies.TopologyParameters,
        ),
        Choice(
            path="training.dataset",
            key="name",
            models=_union(datasets.AnyDataset, "name"),
            default="digits",
            alone=True,
            own=user,
        ),
        Choice(
            path="training.split",
            key="name",
            models=_union(datasets.AnySplit, "name"),
            default="equal",
            alone=True,
        ),
        Choice(
            path="training.schedule",
            key="kind",
            models=_union(learning_rate.AnySchedule, "kind"),
            common=learning_rate.Schedule,
            default="constant",
        ),
        Choice(
            path="training.pace",
            key="kind",
            models=_union(pace.AnyPace, "kind"),
            default="real",
            alone=True,
        ),
        Choice(
            path="phases",
            key="detector",
            models=_union(phases.AnyPhases, "detector"),
            default="gradient-norm",
        ),
        Choice(
            path="impairments[]",
            key="kind",
            models={name: parameters for name, (parameters, _) in KINDS.items()},
            common=ImpairmentParameters,
        ),
    ]


def _topology(name: str) -> Model:
    model: Model = import_module(f"topologies.{name.replace('-', '_')}").Parameters
    return model


def _union(annotation: Any, key: str, other: str | None = None) -> dict[str, Model]:
    """The models of a union by the literal that each has at a key; the one without as `other`."""
    found: dict[str, Model] = {}
    for model in members(annotation):
        kind = model.model_fields[key].annotation
        if typing.get_origin(kind) is typing.Literal:
            found.update({str(name): model for name in typing.get_args(kind)})
        elif other is not None:
            found[other] = model
    return found


def members(annotation: Any) -> list[Any]:
    """What a type is made of: the options of a union, the content of a list or a mapping."""
    inside = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        inside = inside[:1]
    if not inside or typing.get_origin(annotation) is typing.Literal:
        return [annotation]
    return [each for part in inside for each in members(part)]
