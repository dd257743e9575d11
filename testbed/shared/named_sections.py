"""Sections of YAML whose keys depend on what one of them names: a kind of impairment, a detector.

`OneOf` marks such a section in a pydantic model. The entry that the key names, built in or a user's
own, says which other keys there are.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, GetJsonSchemaHandler, ValidationError, ValidationInfo
from pydantic_core import core_schema

from testbed.shared import docstrings, own_code, problems
from testbed.shared.input_error import shown
from testbed.shared.problems import Problem
from testbed.shared.registry import Registry

Schema = dict[str, Any]


def folders(info: ValidationInfo) -> Sequence[Path]:
    """Return the folders in which relative paths of an experiment are looked for."""
    return cast(Sequence[Path], (info.context or {}).get("folders", ()))


@dataclass(frozen=True)
class OneOf:
    """Marks a type: a section whose `key` names an entry of a registry."""

    registry: Registry[Any]
    key: str
    base: type[BaseModel]  # the class of all sections of this sort
    model: Callable[[str], Any] | None = None  # the section's class for a name; None: the entry is
    own: type[BaseModel] | None = None  # that editors are told of for own code; None: `base`
    default: str | None = None  # the name where the key is missing; None: it must be there
    by_name: bool = False  # whether a text in place of the section is that name without other keys
    check: Callable[[Any], object] | None = None  # what it raises is a problem of the section

    def validate(self, value: Any, info: ValidationInfo) -> BaseModel:
        if isinstance(value, self.base):
            return value
        is_name = self.by_name and isinstance(value, str)
        if is_name:
            value = {self.key: value}
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a mapping of keys to values, with the key {self.key!r}")
        name = value.get(self.key, self.default)
        if not isinstance(name, str):
            raise problems.raised([self._without_name(value)])
        try:
            name = self.registry.locate(name, folders(info))
            model = self._model(name)
        except ValueError as error:
            raise problems.raised([Problem((self.key,), str(error))]) from None
        try:
            section = model.model_validate({**value, self.key: name}, context=info.context)
        except ValidationError as error:
            wrong = problems.of(error, model)
            if is_name:
                wrong = [self._with_example(problem, name) for problem in wrong]
            raise problems.raised(wrong) from None
        except Exception as error:
            if name in self.registry:
                raise
            line = own_code.in_one_line(own_code.split(name)[0], error)
            raise problems.raised([Problem((self.key,), line)]) from None
        if self.check is not None:
            self.check(section)
        return section

    def _with_example(self, problem: Problem, name: str) -> Problem:
        """Add how a section is written, where a name alone does not do."""
        if problem.sort != problems.MISSING:
            return problem
        example = f"{{ {self.key}: {name}, {problems.dotted(problem.place)}: ... }}"
        return problem._replace(message=f"{problem.message}; valid: {example}")

    def _without_name(self, section: Mapping[str, Any]) -> Problem:
        valid, name = f"valid: {', '.join(self.registry)}", section.get(self.key)
        if name is not None:
            return Problem((self.key,), f"{shown(name)}: must be a name; {valid}")
        missing = Problem((self.key,), f"this key is missing; {valid}", problems.MISSING)
        return problems.misspelt(self.key, section) or missing

    def _model(self, name: str) -> type[BaseModel]:
        return cast(type[BaseModel], (self.model or self.registry.entry)(name))

    def models(self) -> dict[str, type[BaseModel]]:
        return {name: self._model(name) for name in self.registry}

    def meaning(self, name: str) -> str:
        """Describe a name in a sentence: its file's, where the file is about it alone."""
        model = self._model(name)
        files = [inspect.getmodule(section) for section in {*self.models().values()}]
        file = inspect.getmodule(model)
        of_file = docstrings.first_sentence(file)
        if files.count(file) > 1 or not of_file:
            return docstrings.first_sentence(model)
        return re.sub(r"^`[^:]*`: ", "", of_file)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> Schema:
        """Make a chain of conditions on the name, which editors explain best."""
        rules = []
        for name, model in self.models().items():
            reference = _reference(model, handler)
            keys = handler.resolve_ref_schema(reference)["properties"]
            keys[self.key].setdefault("description", self.meaning(name))
            rules.append(when(self.key, {"const": name}, reference))
            if name == self.default:
                absent = {"type": "object", "not": {"required": [self.key]}}
                rules.append({"if": absent, "then": reference})
        if self.registry.own is not None:
            own = handler.resolve_ref_schema(_reference(self.own or self.base, handler))
            keys = own["properties"] | {self.key: {"description": "names code of your own"}}
            # The user's file says which further keys there are, where we do not.
            open_ = {**own, "properties": keys, "additionalProperties": True}
            rules.append(when(self.key, _OWN, open_))
        named = name_schema(self.registry)
        key = {**named, "description": "decides which further keys there are"}
        section: Schema = {"properties": {self.key: key}, "allOf": rules}
        if self.default is None:
            section["required"] = [self.key]
        if self.by_name:
            return {"if": {"type": "string"}, "then": named, "else": section | {"type": "object"}}
        return section | {"type": "object"}


def all_sections(model: type[BaseModel], place: str = "") -> Iterator[tuple[str, OneOf]]:
    """Find the sections that a model and its sections mark; `[]` is each entry of a list."""
    for name, field in model.model_fields.items():
        path = place + name
        kind: Any = field.annotation
        marks: Sequence[Any] = field.metadata
        if typing.get_origin(kind) is list:
            path, (kind,) = f"{path}[]", typing.get_args(kind)
            marks = getattr(kind, "__metadata__", ())
        if sections := [mark for mark in marks if isinstance(mark, OneOf)]:
            yield from ((path, section) for section in sections)
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from all_sections(kind, f"{path}.")


_OWN: Schema = {"type": "string", "pattern": own_code.PATTERN}


def name_schema(registry: Registry[Any]) -> Schema:
    """Make the JSON schema of a registry's name, or of a reference to a user's own code."""
    names: Schema = {"enum": sorted(registry)}
    return names if registry.own is None else {"anyOf": [names, _OWN]}


def when(key: str, value: Schema, then: Schema) -> Schema:
    """Make the JSON schema of a mapping that is as `then` says where its `key` is a `value`."""
    condition = {"type": "object", "properties": {key: value}, "required": [key]}
    return {"if": condition, "then": then}


def _reference(model: type[BaseModel], handler: GetJsonSchemaHandler) -> Schema:
    return handler(core_schema.definitions_schema(model.__pydantic_core_schema__, []))
