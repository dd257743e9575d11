"""What is wrong with a document, in words: pydantic's errors with our messages.

Each problem is a place, which is a path of keys, and a message: the value that was given and what
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
_ORDER = {"extra_forbidden": 0, UNKNOWN: 0, "missing": 2, MISSING: 2}
_KINDS = (
    (("int_",), "must be a whole number"),
    (("float_", "finite_"), "must be a number"),
    (("string_type", "string_sub_type"), "must be a text"),
    (("bool_",), "must be true or false"),
    (("list_", "tuple_"), "must be a list"),
    (("dict_", "model_", "mapping_"), "must be a mapping of keys to values"),
)
_BOUNDS = {"gt": " above {}", "ge": " of {} or more", "lt": " below {}", "le": " up to {}"}
_MOST_NAMED = 5
_BOUND_ERRORS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
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
    found = [_problem(each, model) for each in error.errors(include_url=False)]
    return sorted(found, key=lambda each: _ORDER.get(each.sort, 1))


def lines(found: Iterable[Problem]) -> list[str]:
    """Each problem as `key: value: what would be valid`."""
    said = ((dotted(each.place), " ".join(each.message.split())) for each in found)
    return list(dict.fromkeys(f"{place}: {told}" if place else told for place, told in said))


def once(found: Iterable[Problem]) -> list[Problem]:
    """The problems; one that both legs have in common, as where one value is for both, once."""
    found = list(found)
    every = {(each.place, each.message) for each in found}
    told = []
    for each in found:
        *above, last = each.place or ("",)
        legs = {((*above, leg), each.message) for leg in ("gather", "broadcast")}
        is_of_both = last in ("gather", "broadcast") and legs <= every
        told.append(each._replace(place=tuple(above)) if is_of_both else each)
    return list(dict.fromkeys(told))


def explain(found: list[Problem]) -> str:
    """The first problem as in `lines`, and where more of them are: for one line in all."""
    others, places = "", dict[str, str]()
    for each in found:
        places.setdefault(each.message, dotted(each.place))
    _, *more = places.values()
    if more:
        where = ", ".join(dict.fromkeys(each for each in more[:_MOST_NAMED] if each))
        where += ", ..." if len(more) > _MOST_NAMED else ""
        others = f" (and {len(more)} more problem{'s' if len(more) > 1 else ''}: {where})"
    return lines(found[:1])[0] + others


def of_message(message: str) -> Problem:
    """What the check of a whole section says: `key: ...` is about this key, else about it all."""
    told = _KEY_OF_MESSAGE.fullmatch(message)
    if told is None:
        return Problem((), message)
    return Problem((told["key"], *told["below"].split(".")[1:]), told["message"] or told["value"])


def raised(found: list[Problem]) -> ValidationError:
    """An error that tells pydantic these problems of a section; `of` gives them back."""
    return ValidationError.from_exception_data(
        "section",
        [
            InitErrorDetails(
                type=PydanticCustomError(each.sort, "{text}", {"text": each.message}),
                loc=each.place,
                input={},
            )
            for each in found
        ],
    )


def misspelt(key: str, given: Iterable[Any]) -> Problem | None:
    """The one of the given keys that may have been meant to be this key, which is missing."""
    near = difflib.get_close_matches(key, map(str, given), n=1)
    return Problem((near[0],), f"unknown key; did you mean {key!r}?", UNKNOWN) if near else None


def _problem(each: Mapping[str, Any], model: type[BaseModel]) -> Problem:
    given, sort, message = each["input"], each["type"], each["msg"].removeprefix("Value error, ")
    if sort in (UNKNOWN, MISSING, OTHER):  # a section has told it, with its own keys
        return Problem(
            tuple(part for part in each["loc"] if not _is_pydantics(part)), message, sort
        )
    place, kind = _walked(model, each["loc"])
    if sort == "extra_forbidden":
        _, section = _walked(model, each["loc"][:-1])
        valid = _keys_of(section)
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
        message = _in_words(each, kind, place) or message
    else:
        told = of_message(message)
        open_ = _is_model(_plain(kind)) and _plain(kind).model_config.get("extra") == "allow"
        if told.place and (open_ or told.place[0] in _keys_of(kind)):
            # A check of a whole section names the key itself.
            return told._replace(place=(*place, *told.place))
        if given and str(given) in message:
            return Problem(place, message)
    if not place or isinstance(given, Mapping | BaseModel):
        return Problem(place, message)
    between = "; " if message.startswith("valid: ") else ": "
    return Problem(place, f"{shown(given)}{between}{message}")


def _in_words(each: Mapping[str, Any], kind: Any, place: Place) -> str | None:
    """What the value should have been; None where pydantic's own words must do."""
    sort, context = each["type"], each.get("ctx", {})
    if sort == "literal_error":
        valid = [str(value) for value in typing.get_args(_plain(kind))]
        listed = ", ".join(valid) or context["expected"]
        return f"valid: {listed}{did_you_mean(str(each['input']), valid)}"
    if sort == "string_pattern_mismatch":
        # A user's own section has a regular expression alone, and perhaps a description.
        told = (getattr(each, "description", None) for each in _peeled(kind)[1])
        description = next(filter(None, told), "another form")
        return f"valid: {_forms.get(context['pattern'], description)}"
    if sort in ("too_short", "too_long"):
        least, most = context.get("min_length"), context.get("max_length")
        count = f"at least {least}" if sort == "too_short" else f"at most {most}"
        return f"must have {count} {'entry' if count.endswith(' 1') else 'entries'}"
    if sort == "string_too_long":
        return f"must have at most {context['max_length']} characters"
    if sort == "multiple_of":
        return f"must be a multiple of {context['multiple_of']}"
    key = next((part for part in reversed(place) if isinstance(part, str)), "")
    if sort in _BOUND_ERRORS:
        whole = _plain(kind) is int
        return (
            f"must be {'a whole number' if whole else 'a number'}"
            + (_range(kind) or _BOUNDS[next(iter(context))].format(*context.values()))
            + units.hint(key, each["input"])
        )
    for sorts, words in _KINDS:
        if sort.startswith(sorts):
            if sort.startswith("model_"):
                fields = _plain(kind).model_fields.items()
                needed = " and ".join(repr(name) for name, one in fields if one.is_required())
                words += f", with the key {needed}" if needed else ""
            of_texts = typing.get_args(_plain(kind)) == (str,)
            if sort.startswith("list_") and of_texts and isinstance(each["input"], str):
                words += f": write [{each['input']}]"
            numeric = sort.startswith(("int_", "float_", "finite_"))
            return words + (_range(kind) + units.hint(key, each["input"]) if numeric else "")
    return None


def _range(kind: Any) -> str:
    """The bounds of a number in words, with a space before; empty where there are none."""
    marks = [one for each in _peeled(kind)[1] for one in getattr(each, "metadata", [each])]
    found = {
        name: getattr(bound, name)
        for bound in marks
        for name in _BOUNDS
        if getattr(bound, name, None) is not None
    }
    if {"ge", "le"} == found.keys():
        return f" from {_number(found['ge'])} to {_number(found['le'])}"
    words = [_BOUNDS[name].format(_number(bound)) for name, bound in found.items()]
    return " and".join(words)


def _number(value: float) -> str:
    whole = isinstance(value, int) or value.is_integer()
    return f"{int(value):_}" if whole and abs(value) < 1e15 else f"{value:g}"


def _peeled(kind: Any) -> tuple[Any, list[Any]]:
    """What `Annotated` and `X | None` enclose, and the metadata on the way."""
    found: list[Any] = []
    while True:
        if typing.get_origin(kind) is typing.Annotated:
            found += kind.__metadata__
            kind = typing.get_args(kind)[0]
        elif typing.get_origin(kind) in (typing.Union, types.UnionType):
            others = [each for each in typing.get_args(kind) if each is not type(None)]
            if len(others) > 1:
                return kind, found
            kind = others[0]
        else:
            return kind, found


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
    if _is_model(plain):
        for name, field in plain.model_fields.items():
            if part in (name, field.alias):
                return typing.Annotated[field.annotation, field]
    kinds = typing.get_args(plain)
    if typing.get_origin(plain) in (list, dict):
        return kinds[-1]
    if typing.get_origin(plain) is tuple and isinstance(part, int) and part < len(kinds):
        return kinds[part]
    return None


def _keys_of(kind: Any) -> list[str]:
    plain = _plain(kind)
    if not _is_model(plain):
        return []
    return sorted(field.alias or name for name, field in plain.model_fields.items())


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
