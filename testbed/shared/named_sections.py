"""Sections of YAML whose keys depend on what one of them names: a kind of impairment, a detector.

`OneOf` marks such a section in a pydantic model. The entry that the key names, built in or from a
user's own file, says which other keys there are, so that no union has to be edited for a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, GetJsonSchemaHandler, ValidationError, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from testbed.shared import yaml_input
from testbed.shared.registry import Registry


def folders(info: ValidationInfo) -> Sequence[Path]:
    """Where relative paths of an experiment are looked for: what was validated says so."""
    found: Sequence[Path] = (info.context or {}).get("folders", ())
    return found


@dataclass(frozen=True)
class OneOf:
    """Marks a type: a section whose `key` names an entry of a registry.

    Args:
        registry: the names.
        key: the key that chooses.
        base: the class of all sections of this sort.
        model: the section's class for a name or own code; None: the registry's entry is one.
        default: the name where the key is missing; None: it must be there.
        by_name: whether a text in place of the section stands for that name and no other keys.
        check: called with each section; what it raises is a problem of the section as a whole.
    """

    registry: Registry[Any]
    key: str
    base: type[BaseModel]
    model: Callable[[str], Any] | None = None
    default: str | None = None
    by_name: bool = False
    check: Callable[[Any], object] | None = None

    def validate(self, given: Any, info: ValidationInfo) -> BaseModel:
        """The section that YAML gives.

        Raises:
            ValidationError: with one problem per key.
            ValueError: not a section at all.
        """
        if isinstance(given, self.base):
            return given
        if self.by_name and isinstance(given, str):
            given = {self.key: given}
        if not isinstance(given, Mapping):
            raise ValueError("must be a mapping of keys to values")
        name = given.get(self.key, self.default)
        if not isinstance(name, str):
            said = "this key is missing" if name is None else f"{name!r}: must be a name"
            raise problems([((self.key,), f"{said}; valid: {', '.join(self.registry)}")])
        try:
            name = self.registry.locate(name, folders(info))
            model = self._model(name)
        except ValueError as error:
            raise problems([((self.key,), str(error))]) from None
        try:
            found = model.model_validate({**given, self.key: name}, context=info.context)
        except ValidationError as error:
            raise problems(_told(error, model)) from None
        if self.check is not None:
            self.check(found)
        return found

    def _model(self, name: str) -> type[BaseModel]:
        return cast(type[BaseModel], (self.model or self.registry.entry)(name))

    def models(self) -> dict[str, type[BaseModel]]:
        """The section of each built-in name."""
        return {name: self._model(name) for name in self.registry}

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self.validate,
            serialization=core_schema.wrap_serializer_function_ser_schema(
                lambda value, serialise: serialise(value), schema=core_schema.any_schema()
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Any section: `testbed.experiment.json_schema` puts those of all names in its place."""
        return {}


Problem = tuple[tuple[int | str, ...], str]


def _told(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """The same problems in words; unknown keys come with those that this section has."""
    found: list[Problem] = []
    for problem in error.errors(include_url=False):
        location, message = problem["loc"], problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            valid = yaml_input.valid_keys(model, location[:-1])
            message = f"unknown key; valid: {', '.join(valid)}"
        elif problem["type"] == "missing":
            message = "this key is missing"
        elif not isinstance(problem["input"], Mapping | BaseModel):
            message = f"{problem['input']!r}: {message}"
        found.append((location, message))
    return found


def problems(found: Sequence[Problem]) -> ValidationError:
    """An error with a message for each place; the messages say what was given there."""
    return ValidationError.from_exception_data(
        "section",
        [
            InitErrorDetails(
                type=PydanticCustomError("section", "{text}", {"text": message}),
                loc=location,
                input={},
            )
            for location, message in found
        ],
    )
