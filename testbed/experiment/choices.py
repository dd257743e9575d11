"""Where in an experiment a name decides which further keys there are, and their models."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

import topologies
from controllers.impairments import AnyImpairment, ImpairmentParameters
from testbed.shared import docstrings
from testbed.shared.named_sections import OneOf
from testbed.training import datasets, learning_rate, pace, phases
from testbed.training.datasets import user

Model = type[BaseModel]
# What names something of a user's own: a file, an object in a file, an object of a module.
OWN = r"^(.*\.py(:.*)?|.*/.*|[A-Za-z_][\w.]*:[A-Za-z_]\w*(:.*)?)$"


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
    return [
        _registered("topology", topologies.AnyTopology, common=topologies.TopologyParameters),
        _registered("training.dataset", datasets.AnyDataset, own=user.Parameters),
        Choice(
            path="training.split",
            key="name",
            models=_union(datasets.AnySplit, "name"),
            alone=True,
        ),
        _registered("training.schedule", learning_rate.AnySchedule, common=learning_rate.Schedule),
        Choice(
            path="training.pace",
            key="kind",
            models=_union(pace.AnyPace, "kind"),
            alone=True,
        ),
        _registered("phases", phases.AnyPhases),
        _registered("impairments[]", AnyImpairment, common=ImpairmentParameters),
    ]


def _registered(
    path: str, annotation: Any, *, common: Model | None = None, own: Model | None = None
) -> Choice:
    """A place whose names are those of a registry, or references to a user's own code."""
    (found,) = (each for each in annotation.__metadata__ if isinstance(each, OneOf))
    return Choice(
        path=path,
        key=found.key,
        models=found.models(),
        common=common,
        default=found.default,
        alone=found.by_name,
        own=own or found.base,
    )


def _union(annotation: Any, key: str) -> dict[str, Model]:
    """The models of a union by the literal that each has at a key."""
    found: dict[str, Model] = {}
    for model in members(annotation):
        names = typing.get_args(model.model_fields[key].annotation)
        found.update({str(name): model for name in names})
    return found


def members(annotation: Any) -> list[Any]:
    """What a type is made of: the options of a union, the content of a list or a mapping."""
    inside = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        inside = inside[:1]
    if not inside or typing.get_origin(annotation) is typing.Literal:
        return [annotation]
    return [each for part in inside for each in members(part)]
