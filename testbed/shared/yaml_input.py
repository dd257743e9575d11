"""Reads YAML that a person wrote, and says in one line what is wrong with it."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from testbed.shared.input_error import InputError

__all__ = ["InputError", "Section", "explain", "override", "problems", "read", "replace"]

_MOST_BYTES = 1 << 20


class Section(BaseModel):
    """A part of an experiment: unknown keys are errors, values do not change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        InputError: unreadable, too large, not YAML, or not a mapping.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path}: larger than {_MOST_BYTES} bytes")
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: must be a mapping of keys to values")
    return document


def override(document: dict[str, Any], text: str) -> str:
    """Apply one `key.path=value`, whose value is read as YAML; return the key.

    Raises:
        InputError: no '=' in it, or the path does not exist.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError(f"--set {text}: must be KEY=VALUE, for example --set rounds=10")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise InputError(f"--set {text}: the value is not YAML") from None
    try:
        replace(document, key, parsed)
    except InputError as error:
        raise InputError(f"--set {text}: {error}") from None
    return key


def replace(document: dict[str, Any], key: str, value: Any) -> None:
    """Replace what a dotted path names; numbers index lists. The schema checks the result."""
    *parents, last = key.split(".")
    place: Any = document
    for part in parents:
        if isinstance(place, dict):
            place = place.setdefault(part, {})
        elif isinstance(place, list) and part.isdigit() and int(part) < len(place):
            place = place[int(part)]
        else:
            raise InputError(f"{key}: there is no {part!r}")
    if isinstance(place, dict):
        place[last] = value
    elif isinstance(place, list) and last.isdigit() and int(last) < len(place):
        place[int(last)] = value
    else:
        raise InputError(f"{key}: there is no {last!r}")


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem as `key: value: what would be valid`, and how many more there are."""
    found = problems(error, model)
    location, message = found[0]
    parts = [str(part) for part in location]
    where = ".".join(part for part in parts if not part.startswith(("function-", "literal[")))
    more = len(found) - 1
    others = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    return (f"{where}: " if where else "") + message + others


Problem = tuple[tuple[int | str, ...], str]


def problems(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Where each problem is, and what it is; unknown keys come with those that are valid."""
    found: list[Problem] = []
    for each in error.errors(include_url=False):
        location, message = each["loc"], each["msg"].removeprefix("Value error, ")
        given = each["input"]
        if each["type"] == "extra_forbidden":
            valid = _valid_keys(model, location[:-1])
            message = "unknown key" + (f"; valid: {', '.join(valid)}" if valid else "")
        elif each["type"] == "missing":
            message = "this key is missing"
        elif location and not (
            isinstance(given, Mapping | BaseModel) or (given and str(given) in message)
        ):
            message = f"{given!r}: {message}"
        found.append((location, message))
    return found


def _valid_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys of the model that a validation error's location leads to."""
    kind: Any = model
    for part in location:
        kind = _step(kind, part)
    if not _is_model(kind):
        return []
    return sorted(field.alias or name for name, field in kind.model_fields.items())


def _step(kind: Any, part: int | str) -> Any:
    kind = _plain(kind)
    if _is_model(kind):
        field = kind.model_fields.get(part)
        return field.annotation if field is not None else None
    if typing.get_origin(kind) in (list, dict):
        return typing.get_args(kind)[-1]
    return kind


def _plain(kind: Any) -> Any:
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    return kind


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
