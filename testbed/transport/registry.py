"""Names for the interchangeable parts: one small table per axis, with options as text.

`NAME` or `NAME:key=value,key=value` selects an entry and sets its options, for example
`phased:low=0.008,high=0.408`. Whoever writes such a text by hand gets an error that lists what
would have been valid.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to factories; a factory's keyword parameters are the entry's options."""

    def __init__(self, axis: str, entries: Mapping[str, Callable[..., T]]) -> None:
        """`axis` names the table in error messages, for example "congestion control"."""
        self.axis = axis
        self._entries = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def add(self, name: str, factory: Callable[..., T]) -> None:
        """Makes a new entry available under `name`; ValueError when the name is taken."""
        if name in self._entries:
            raise ValueError(f"{self.axis} {name!r} exists already")
        self._entries[name] = factory

    def create(self, text: str, **given: Any) -> T:
        """Builds the entry that `text` names.

        `given` holds arguments that the program and not the user supplies; a factory is
        handed those that it has parameters for, and the text's options win over them.
        Raises ValueError for an unknown name, an unknown option or a malformed text.
        """
        name, options = parse_options(text)
        return self.build(name, options, **given)

    def build(self, name: str, options: Mapping[str, Any], **given: Any) -> T:
        """Like `create`, for a name and options that are apart already."""
        if name not in self._entries:
            raise ValueError(f"unknown {self.axis} {name!r}; valid: {', '.join(self._entries)}")
        factory = self._entries[name]
        accepted = inspect.signature(factory).parameters
        for key in options:
            if key not in accepted:
                valid = ", ".join(accepted) or "none"
                raise ValueError(
                    f"{self.axis} {name!r} has no option {key!r}; valid options: {valid}"
                )
        arguments = {key: value for key, value in given.items() if key in accepted}
        arguments.update(options)
        missing = [
            key
            for key, parameter in accepted.items()
            if parameter.default is inspect.Parameter.empty and key not in arguments
        ]
        if missing:
            raise ValueError(f"{self.axis} {name!r} needs the option {', '.join(missing)}")
        return factory(**arguments)


def parse_options(text: str) -> tuple[str, dict[str, bool | int | float | str]]:
    """Splits `NAME:key=value,...` into the name and the options, numbers converted."""
    name, colon, rest = text.partition(":")
    options: dict[str, bool | int | float | str] = {}
    if not colon:
        return name.strip(), options
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ValueError(f"{text!r}: {part!r} is not of the form key=value")
        options[key.strip()] = _value(value.strip())
    return name.strip(), options


def _value(text: str) -> bool | int | float | str:
    if text in ("true", "false"):
        return text == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
