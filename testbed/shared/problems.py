"""What is wrong with a document, in words: pydantic's errors with our messages.

Each problem has a place, which is a path of keys, and a message: the value that was given and what
would be valid, from the field's own type and bounds.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field, Tag, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from testbed.shared import units
from testbed.shared.input_error import shown
from testbed.shared.registry import did_you_mean, one_of

Place = tuple[int | str, ...]
# The types of problems that sections report about themselves, through `raised`.
UNKNOWN, MISSING, OTHER = "unknown_key", "missing_key", "section"
_ORDER = {UNKNOWN: 0, MISSING: 2}
_KINDS = {
    "int_": "must be a whole number",
    **dict.fromkeys(("float_", "finite_"), "must be a number"),
    **dict.fromkeys(("string_type", "string_sub_type"), "must be a text"),
    "bool_": "must be true or false",
    **dict.fromkeys(("list_", "tuple_"), "must be a list"),
    **dict.fromkeys(("dict_", "model_", "mapping_"), "must be a mapping of keys to values"),
}
_BOUNDS = {"gt": " above {}", "ge": " of {} or more", "lt": " below {}", "le": " up to {}"}
_MOST_NAMED = 5
_forms: dict[str, str] = {}
# `key: message`, `key.below: message`, `key is VALUE; valid: ...`
_KEY_OF_MESSAGE = re.compile(
    r"(?P<key>[a-z_]\w*)(?P<below>(\.[\w-]+)*)(?:: (?P<message>.*)| is (?P<value>.*; valid: .*))",
    re.DOTALL,
)


class Problem(typing.NamedTuple):
    """Where it is, what it is, and of which sort: unknown key, missing key, or another."""

    place: Place
    message: str
    sort: str = OTHER


def form(pattern: str, words: str, **further: Any) -> Any:
    """A pydantic field of texts with this form, which a message calls `words`."""
    _forms[pattern] = words
    return Field(pattern=pattern, **further)


def dotted(place: Place) -> str:
    """A place as a key path."""
    return ".".join(
        part if isinstance(part, str) and part.isprintable() else repr(part) for part in place
    )


def of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """All problems: first unknown keys, which may explain the missing ones, which come last."""
    problems = [_problem(details, model) for details in error.errors(include_url=False)]
    return sorted(problems, key=lambda problem: _ORDER.get(problem.sort, 1))


def lines(problems: Iterable[Problem]) -> list[str]:
    """Each problem as `key: value: what would be valid`, once."""
    parts = ((dotted(place), " ".join(message.split())) for place, message, _ in problems)
    return list(dict.fromkeys(": ".join(filter(None, part)) for part in parts))


def once(problems: list[Problem]) -> list[Problem]:
    """The problems; one that both legs have in common, as where one value is for both, once."""
    legs = ("gather", "broadcast")
    known = {(place, message) for place, message, _ in problems}

    def of_both(problem: Problem) -> Problem:
        above, last = problem.place[:-1], problem.place[-1:]
        both = last[:1] and last[0] in legs
        if both and {((*above, leg), problem.message) for leg in legs} <= known:
            return problem._replace(place=above)
        return problem

    return list(dict.fromkeys(map(of_both, problems)))


def explain(problems: list[Problem]) -> str:
    """The first problem as in `lines`, and where more of them are: for one line in all."""
    first, places = lines(problems[:1])[0], dict[str, str]()
    for place, message, _ in problems:
        places.setdefault(message, dotted(place))
    _, *more = places.values()
    if not more:
        return first
    where = ", ".join(dict.fromkeys(filter(None, more[:_MOST_NAMED])))
    where = f": {where}" * bool(where) + ", ..." * (len(more) > _MOST_NAMED)
    return f"{first} (and {len(more)} more problem{'s' * (len(more) > 1)}{where})"


def of_message(message: str) -> Problem:
    """What the check of a whole section says: `key: ...` is about this key, else about it all."""
    parts = _KEY_OF_MESSAGE.fullmatch(message)
    if parts is None:
        return Problem((), message)
    place = (parts["key"], *parts["below"].split(".")[1:])
    return Problem(place, parts["message"] or parts["value"])


def raised(problems: Iterable[Problem]) -> ValidationError:
    """An error that gives pydantic these problems of a section; `of` gives them back."""
    return ValidationError.from_exception_data(
        "section",
        [
            InitErrorDetails(
                type=PydanticCustomError(sort, "{text}", {"text": message}), loc=place, input={}
            )
            for place, message, sort in problems
        ],
    )


def misspelt(key: str, given: Iterable[Any]) -> Problem | None:
    """The one of the given keys that may have been meant to be this key, which is missing."""
    near = difflib.get_close_matches(key, map(str, given), n=1)
    return Problem((near[0],), f"unknown key; did you mean {key!r}?", UNKNOWN) if near else None


def _problem(details: Mapping[str, Any], model: type[BaseModel]) -> Problem:
    given, sort = details["input"], details["type"]
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
        if given and str(given) in message:
            return Problem(place, message)
    if not place or isinstance(given, Mapping | BaseModel):
        return Problem(place, message)
    between = "; " if message.startswith("valid: ") else ": "
    return Problem(place, f"{shown(given)}{between}{message}")


def _in_words(details: Mapping[str, Any], kind: Any, place: Place) -> str | None:
    """What the value should have been; None where pydantic's own words must do."""
    sort, given, context = details["type"], details["input"], details.get("ctx", {})
    plain, marks = _peeled(kind)
    key = next((part for part in reversed(place) if isinstance(part, str)), "")
    match sort:
        case "literal_error":
            valid = [str(value) for value in typing.get_args(plain)]
            listed = ", ".join(valid) or context["expected"]
            return f"valid: {listed}{did_you_mean(str(given), valid)}"
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
            return words + units.hint(key, given)
    words = next((words for sorts, words in _KINDS.items() if sort.startswith(sorts)), "")
    if sort.startswith(("int_", "float_", "finite_")):
        return words + _range(kind) + units.hint(key, given)
    if sort.startswith("model_"):
        fields = plain.model_fields.items()
        needed = " and ".join(repr(name) for name, field in fields if field.is_required())
        words += f", with the key {needed}" if needed else ""
    if sort.startswith("list_") and typing.get_args(plain) == (str,) and isinstance(given, str):
        words += f": write [{given}]"
    return words or None


def _range(kind: Any) -> str:
    """The bounds of a number in words, with a space before; empty where there are none."""
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
    """What `Annotated` and `X | None` enclose, and the metadata on the way."""
    if typing.get_origin(kind) is typing.Annotated:
        plain, marks = _peeled(typing.get_args(kind)[0])
        return plain, [*kind.__metadata__, *marks]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        others = [each for each in typing.get_args(kind) if each is not type(None)]
        return _peeled(others[0]) if len(others) == 1 else (kind, [])
    return kind, []


def _plain(kind: Any) -> Any:
    return _peeled(kind)[0]


def _walked(model: type[BaseModel], location: Place) -> tuple[Place, Any]:
    """The keys in an error's location, without pydantic's own parts; and the type there."""
    kind: Any = model
    place: list[int | str] = []
    for part in location:
        plain = _plain(kind)
        inner = typing.get_args(plain)
        if typing.get_origin(plain) in (typing.Union, types.UnionType):
            kind = next((each for each in inner if Tag(str(part)) in _peeled(each)[1]), None)
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
