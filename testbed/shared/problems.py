"""Sections of YAML, and what is wrong with them: the value, and what would be valid."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, Tag, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from testbed.shared import units
from testbed.shared.input_error import InputError, shown
from testbed.shared.registry import did_you_mean, one_of

Place = tuple[int | str, ...]
# The types of problems that sections report about themselves, through `raised`.
UNKNOWN, MISSING, OTHER = "unknown_key", "missing_key", "section"
_ORDER = {UNKNOWN: 0, MISSING: 2}
# By the first word of a type of pydantic's errors.
_KINDS = {"int": "a whole number", "float": "a number", "finite": "a number", "string": "a text"}
_KINDS |= {"bool": "true or false", "list": "a list", "tuple": "a list"}
_KINDS |= dict.fromkeys(("dict", "model", "mapping"), "a mapping of keys to values")
_BOUNDS = {"gt": " above {}", "ge": " of {} or more", "lt": " below {}", "le": " up to {}"}
_forms: dict[str, str] = {}
# `key: message`, `key.below: message`, `key is VALUE; valid: ...`
_KEY_OF_MESSAGE = re.compile(
    r"(?P<key>[a-z_]\w*)(?P<below>(\.[\w-]+)*)(?:: (?P<message>.*)| is (?P<value>.*; valid: .*))",
    re.DOTALL,
)


class Section(BaseModel):
    """A part of an experiment, frozen; unknown keys and numbers that are not finite are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Problem(typing.NamedTuple):
    """A mistake at a place; its sort is an unknown key, a missing key, or another."""

    place: Place
    message: str
    sort: str = OTHER


def form(pattern: str, words: str, **further: Any) -> Any:
    """Make a pydantic field of texts with this form, which a message calls `words`."""
    _forms[pattern] = words
    return Field(pattern=pattern, **further)


def optional(description: str, **further: Any) -> Any:
    return Field(default=None, description=description, **further)


def dotted(place: Place) -> str:
    return ".".join(
        part if isinstance(part, str) and part.isprintable() else repr(part) for part in place
    )


def of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Return all problems: unknown keys first, which may explain the missing ones, the last."""
    problems = [_problem(details, model) for details in error.errors(include_url=False)]
    return sorted(problems, key=lambda problem: _ORDER.get(problem.sort, 1))


def line(problem: Problem) -> str:
    """Write a problem as `key: value: what would be valid`."""
    parts = (dotted(problem.place), " ".join(problem.message.split()))
    return ": ".join(filter(None, parts))


def input_error(error: ValidationError, model: type[BaseModel], before: str = "") -> InputError:
    """Make an error with a line for each mistake; `before` stands in front of the keys."""
    return InputError(*dict.fromkeys(before + line(problem) for problem in of(error, model)))


def of_message(message: str) -> Problem:
    """Read a message of a whole section's check: `key: ...` is about this key, else about all."""
    parts = _KEY_OF_MESSAGE.fullmatch(message)
    if parts is None:
        return Problem((), message)
    place = (parts["key"], *parts["below"].split(".")[1:])
    return Problem(place, parts["message"] or parts["value"])


def raised(problems: Iterable[Problem]) -> ValidationError:
    """Make an error that gives pydantic these problems of a section; `of` reads them back."""
    return ValidationError.from_exception_data(
        "section",
        [
            InitErrorDetails(
                type=PydanticCustomError(sort, "{text}", {"text": message}), loc=place, input={}
            )
            for place, message, sort in problems
        ],
    )


def misspelt(key: str, keys: Iterable[Any]) -> Problem | None:
    """Find the key that may have been meant to be this one, which is missing."""
    near = difflib.get_close_matches(key, map(str, keys), n=1)
    return Problem((near[0],), f"unknown key; did you mean {key!r}?", UNKNOWN) if near else None


def _problem(details: Mapping[str, Any], model: type[BaseModel]) -> Problem:
    value, sort = details["input"], details["type"]
    message = details["msg"].removeprefix("Value error, ")
    if sort in (UNKNOWN, MISSING, OTHER):  # of a section, with its own keys
        return Problem(tuple(x for x in details["loc"] if not _is_pydantics(x)), message, sort)
    place, kind = _walked(model, details["loc"])
    if sort == "extra_forbidden":
        valid = _keys_of(_walked(model, details["loc"][:-1])[1])
        listed = f"; {one_of(str(place[-1]), valid)}" if valid else ""
        return Problem(place, f"unknown key{listed}", UNKNOWN)
    if sort == "missing":
        what = "entry" if isinstance(place[-1], int) else "key"
        valid_number = ""
        if (unit := units.of(str(place[-1]))) and _plain(kind) in (int, float):
            of_unit = f"in {unit.words}, such as {unit.examples}"
            valid_number = f"; valid: a number{_range(kind)}, {of_unit}"
        return Problem(place, f"this {what} is missing{valid_number}", MISSING)
    if sort != "value_error":
        message = _in_words(details, kind, place) or message
    else:
        inner = of_message(message)
        open_ = _is_model(_plain(kind)) and _plain(kind).model_config.get("extra") == "allow"
        if inner.place and (open_ or inner.place[0] in _keys_of(kind)):
            # A check of a whole section names the key itself.
            return inner._replace(place=(*place, *inner.place))
        if value and str(value) in message:
            return Problem(place, message)
    if not place or isinstance(value, Mapping | BaseModel):
        return Problem(place, message)
    between = "; " if message.startswith("valid: ") else ": "
    return Problem(place, f"{shown(value)}{between}{message}")


def _in_words(details: Mapping[str, Any], kind: Any, place: Place) -> str | None:
    """Say what the value should have been; None where pydantic's own words must do."""
    sort, value, context = details["type"], details["input"], details.get("ctx", {})
    plain, marks = _peeled(kind)
    key = next((part for part in reversed(place) if isinstance(part, str)), "")
    match sort:
        case "literal_error":
            valid = [str(choice) for choice in typing.get_args(plain)]
            listed = ", ".join(valid) or context["expected"]
            return f"valid: {listed}{did_you_mean(str(value), valid)}"
        case "string_pattern_mismatch":
            # A user's own section has a regular expression alone, and perhaps a description.
            descriptions = filter(None, (getattr(mark, "description", None) for mark in marks))
            return f"valid: {_forms.get(context['pattern'], next(descriptions, 'another form'))}"
        case "too_short" | "too_long":
            limit = "min_length" if sort == "too_short" else "max_length"
            most = f"at {'least' if sort == 'too_short' else 'most'} {context[limit]}"
            return f"must have {most} {'entry' if context[limit] == 1 else 'entries'}"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters"
        case "multiple_of":
            return f"must be a multiple of {context['multiple_of']}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            words = "must be a whole number" if plain is int else "must be a number"
            words += _range(kind) or _BOUNDS[next(iter(context))].format(*context.values())
            return words + units.hint(key, value)
    first = sort.partition("_")[0]
    if first not in _KINDS:
        return None
    words = f"must be {_KINDS[first]}"
    if first in ("int", "float", "finite"):
        return words + _range(kind) + units.hint(key, value)
    if first == "model":
        fields = plain.model_fields.items()
        needed = " and ".join(repr(name) for name, field in fields if field.is_required())
        words += f", with the key {needed}" if needed else ""
    if first == "list" and typing.get_args(plain) == (str,) and isinstance(value, str):
        words += f": write [{value}]"
    return words


def _range(kind: Any) -> str:
    """Write the bounds of a number in words, with a space before; empty where there are none."""
    marks = [one for mark in _peeled(kind)[1] for one in getattr(mark, "metadata", [mark])]
    bounds = {
        name: _number(getattr(mark, name))
        for mark in marks
        for name in _BOUNDS
        if getattr(mark, name, None) is not None
    }
    if {"ge", "le"} == bounds.keys():
        return f" from {bounds['ge']} to {bounds['le']}"
    return " and".join(_BOUNDS[name].format(bound) for name, bound in bounds.items())


def _number(value: float) -> str:
    whole = isinstance(value, int) or value.is_integer()
    return f"{int(value):_}" if whole and abs(value) < 1e15 else f"{value:g}"


def _peeled(kind: Any) -> tuple[Any, list[Any]]:
    """Return what `Annotated` and `X | None` enclose, and the metadata on the way."""
    if typing.get_origin(kind) is typing.Annotated:
        plain, marks = _peeled(typing.get_args(kind)[0])
        return plain, [*kind.__metadata__, *marks]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        others = [get_arg for get_arg in typing.get_args(kind) if get_arg is not type(None)]
        return _peeled(others[0]) if len(others) == 1 else (kind, [])
    return kind, []


def _plain(kind: Any) -> Any:
    return _peeled(kind)[0]


def _walked(model: type[BaseModel], location: Place) -> tuple[Place, Any]:
    """Return the keys of an error's location, without pydantic's own parts, and the type there."""
    kind: Any = model
    place: list[int | str] = []
    for part in location:
        plain = _plain(kind)
        inner = typing.get_args(plain)
        if typing.get_origin(plain) in (typing.Union, types.UnionType):
            kind = next((it for it in inner if Tag(str(part)) in _peeled(it)[1]), None)
        elif part == "[key]":  # the part before it is what is wrong
            place.pop()
            kind = inner[0] if inner else None
        elif not _is_pydantics(part):
            place.append(part)
            kind = _step(plain, part)
    return tuple(place), kind


def _is_pydantics(part: int | str) -> bool:
    return isinstance(part, str) and part.startswith(("function-", "literal["))


def _step(plain: Any, part: int | str) -> Any:
    kinds = typing.get_args(plain)
    if _is_model(plain):
        for name, field in plain.model_fields.items():
            if part in (name, field.alias):
                return typing.Annotated[field.annotation, field]
    if typing.get_origin(plain) in (list, dict):
        return kinds[-1]
    is_tuple = typing.get_origin(plain) is tuple
    return kinds[part] if is_tuple and isinstance(part, int) and part < len(kinds) else None


def _keys_of(kind: Any) -> list[str]:
    plain = _plain(kind)
    fields = plain.model_fields.items() if _is_model(plain) else ()
    return sorted(field.alias or name for name, field in fields)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
