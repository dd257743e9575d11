"""One table of names for each kind of thing that a user can choose or add.

`NAME` or `NAME:key=value,key=value` selects an entry and sets its options; so does a reference to a
user's own code (`own_code`), such as `./mine.py:Aimd:gain=2`. Errors list what would be valid.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from testbed.shared import own_code, units
from testbed.shared.input_error import InputError, shown

T = TypeVar("T")
Value = bool | int | float | str
_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number"}


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """End a message about an unknown name: with the valid one that is nearest, if any is near."""
    near = difflib.get_close_matches(name, list(valid), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def one_of(name: str, valid: Iterable[str]) -> str:
    """End a message about an unknown name: with the valid ones, and which of them is near."""
    names = list(valid)
    return f"valid: {', '.join(names)}{did_you_mean(name, names)}"


class Registry(Generic[T]):
    """Maps names to factories; a factory's keyword parameters are the entry's options."""

    def __init__(
        self,
        axis: str,
        entries: Mapping[str, Callable[..., T] | str],
        *,
        own: str | None = None,
        base: type | str | None = None,
    ) -> None:
        self.axis = axis  # what it holds, for messages: "congestion control"
        self._entries = dict(entries)  # a text, `package.module:name`, is imported on first use
        # The name that a user's file gives its entry by default, and the class of such an entry.
        self.own = own or (base.__name__ if isinstance(base, type) else None)
        self._base = base  # None: any function will do

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> Callable[..., T]:
        """Return the factory of a name, or of a reference to a user's own code."""
        made: Callable[..., T]
        if name not in self._entries:
            place = self.locate(name)
            base = pkgutil.resolve_name(self._base) if isinstance(self._base, str) else self._base
            made = own_code.load(place, axis=self.axis, default=self.own or "", base=base)
            return made
        factory = self._entries[name]
        if not isinstance(factory, str):
            return factory
        try:
            made = pkgutil.resolve_name(factory)
        except ModuleNotFoundError as error:
            raise InputError(
                f"{self.axis} {name!r} needs the package {error.name!r}, which is not installed "
                "(see ./lab check)"
            ) from None
        return made

    def locate(self, name: str, folders: Sequence[Path] = ()) -> str:
        """Return a name as it is; a reference to a user's own code with an absolute path."""
        if name in self._entries:
            return name
        if self.own and own_code.is_own(name) and own_code.split(name)[2] is None:
            return own_code.located(name, folders)
        valid = ", ".join([*self, *([own_code.FORMS] if self.own else [])])
        raise InputError(f"unknown {self.axis} {name!r}; valid: {valid}{did_you_mean(name, self)}")

    def relocated(self, value: Any, folders: Sequence[Path] = ()) -> Any:
        """Return a configuration's value, with absolute paths of a user's own code."""
        if isinstance(value, Mapping):
            names = {key: value[key] for key in ("name", "policy") if key in value}
            return {**value, **{key: self.relocated(name, folders) for key, name in names.items()}}
        if not isinstance(value, str):
            return value
        name, options = self._divided(value)
        if name in self._entries or not own_code.is_own(name):
            return value
        located = self.locate(name, folders)
        self.entry(located)
        return located if options is None else f"{located}:{options}"

    def text(self, value: Any) -> str:
        """Return a configuration's value, a text or a mapping with the key `name`, as a text."""
        value = self.relocated(value)
        if isinstance(value, str):
            parts = [part.partition("=") for part in (self._divided(value)[1] or "").split(",")]
            if all(units.number(key.strip(), text) is None for key, _, text in parts):
                return value
            return _joined(*self.parse(value))  # plain numbers in place of those with a unit
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise InputError(
                f"{shown(value)}: a {self.axis} must be NAME, NAME:key=value,... or a mapping with "
                "the key 'name'"
            )
        # YAML reads 20e6 as a text; a text that is a number means the number, as in NAME:key=20e6.
        options = {
            str(key): _value(str(key), option) if isinstance(option, str) else option
            for key, option in value.items()
            if key != "name"
        }
        text = _joined(value["name"], options)
        if self.parse(text) != (value["name"], options):
            raise InputError(
                f"{self.axis} {value['name']!r}: options must be numbers, true, false, or texts "
                "without commas"
            )
        return text

    def parse(self, text: str) -> tuple[str, dict[str, Value]]:
        """Split a text into the name and the options, numbers converted."""
        name, rest = self._divided(text)
        options: dict[str, Value] = {}
        for part in [] if rest is None else rest.split(","):
            key, _, value = map(str.strip, part.partition("="))
            if not key or not value:
                raise InputError(f"{text!r}: {part!r} is not of the form key=value")
            if key in options:
                raise InputError(f"{text!r}: {key} stands twice; valid: once")
            options[key] = _value(key, value)
        return name, options

    def create(self, text: str, **arguments: Any) -> T:
        name, options = self.parse(text)
        return self.build(name, options, **arguments)

    def build(self, name: str, options: Mapping[str, Any], **arguments: Any) -> T:
        factory, what = self.entry(name), f"{self.axis} {name!r}"
        accepted = _parameters(factory)
        for key, option in options.items():
            if key not in accepted:
                valid, near = ", ".join(accepted) or "none", did_you_mean(str(key), accepted)
                raise InputError(f"{what} has no option {key!r}; valid options: {valid}{near}")
            if expected := _expected(accepted[key], option):
                hint = units.hint(key, option)
                raise InputError(f"{what}: {key}: {shown(option)}: must be {expected}{hint}")
        arguments = {key: arguments[key] for key in arguments if key in accepted} | {**options}
        missing = [
            key
            for key, parameter in accepted.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and key not in arguments
        ]
        if missing:
            raise InputError(f"{what} needs the option {', '.join(missing)}")
        if name not in self._entries:
            with own_code.explained(own_code.split(self.locate(name))[0]):
                return factory(**arguments)
        try:
            return factory(**arguments)
        except InputError:  # of a part that the entry is made of, and names itself
            raise
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from error

    def _divided(self, text: str) -> tuple[str, str | None]:
        """Divide a text into name and options; None where there are none."""
        name, colon, rest = text.partition(":")
        name = name.strip()
        if name in self._entries or not own_code.is_own(text):
            return name, rest if colon else None
        place, own, options = own_code.split(text)
        return f"{place}:{own}" if own else place, options


def _joined(name: str, options: Mapping[str, Any]) -> str:
    """Write the text that `Registry.parse` divides into these."""
    texts = {key: str(v).lower() if isinstance(v, bool) else v for key, v in options.items()}
    return f"{name}:{','.join(f'{key}={text}' for key, text in texts.items())}" if texts else name


def _value(key: str, text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    if (plain := units.number(key, text)) is not None:
        return plain
    for convert in (int, float):
        with contextlib.suppress(ValueError):
            if math.isfinite(value := convert(text)):
                return value
    return text


@functools.lru_cache(maxsize=256)  # each worker of a simulation asks for the same ones
def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a factory's parameters, with annotations as types where they can be evaluated."""
    try:
        return inspect.signature(factory, eval_str=True).parameters
    except Exception:  # whatever the names in a user's annotations lead to
        return inspect.signature(factory).parameters


def _expected(parameter: inspect.Parameter, value: Any) -> str:
    """Say what an option should have been, by its type or else its default; "" if it fits."""
    kind = parameter.annotation
    if kind is parameter.empty:
        kind = type(parameter.default)
    if isinstance(value, bool):
        return "" if kind is bool else _IN_WORDS.get(kind, "")
    number = isinstance(value, int | float)
    fits = {bool: False, int: number and value % 1 == 0, float: number}
    return "" if fits.get(kind, True) else _IN_WORDS[kind]
