"""YAML as plain data: mappings with texts as keys, lists, texts, finite numbers, booleans, null.

Where YAML leaves room for mistakes this reader is stricter: a key stands once in its mapping, no
tag makes an object, a date is a text, nothing nests deeper than a person writes. Aliases are copies
of what they name, as far as that stays small. `20e6` is a number, as in YAML 1.2.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

from testbed.shared.input_error import InputError

DEEPEST = 40
_MOST_VALUES = 100_000
_MOST_KEYS = 1_000  # of one mapping
_LONGEST_KEY = 500
_MOST_DIGITS = 60
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **{form: True for word in ("true", "yes", "on") for form in (word, word.title(), word.upper())},
    **{
        form: False
        for word in ("false", "no", "off")
        for form in (word, word.title(), word.upper())
    },
}
_WHOLE = re.compile(r"[-+]?(0x[0-9a-fA-F][0-9a-fA-F_]*|0o[0-7][0-7_]*|[0-9][0-9_]*)")
_NUMBER = re.compile(
    r"[-+]?([0-9][0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?"
    r"|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
)
_MERGE = "<<"
# What the parser says, and what it means to somebody who has written the line.
_HERE = (
    (
        "mapping values are not allowed",
        "no key can stand here; look for uneven indentation, a ':' without a space after it, "
        "or a text that needs quotes",
    ),
    ("undefined alias", "the alias refers to no anchor above"),
    ("expected <block end>", "the indentation fits no line above"),
    ("did not find expected key", "the indentation fits no line above, or a quote is missing"),
    ("block sequence entries are not allowed", "a '- ' where no list entry can be"),
    ("expected '-' indicator", "a key where the list above goes on; look at the indentation"),
    ("block collections are not allowed", "a list or mapping must begin on a line of its own"),
    ("exceeded maximum depth", f"nested deeper than {DEEPEST} levels"),
    ("found a tab", "a tab in the indentation; YAML indents with spaces"),
)
# The same, where the mistake is in the line in which the thing begins that the parser was reading.
_WHERE_IT_BEGINS = (
    ("could not find expected ':'", "a key without its value; valid: 'key: value', with a space"),
    ("expected ',' or ']'", "this list is not closed; valid: ',' between entries, ']' at the end"),
    ("expected ',' or '}'", "this mapping is not closed; valid: ',' between keys, '}' at the end"),
    ("expected node content", "a value is missing, or a bracket is not closed"),
    ("unexpected end of stream", "this quote is not closed"),
    ("unexpected document indicator", "this quote is not closed"),
)
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is there


def parse(text: str) -> Any:
    """The one document in a text.

    Raises:
        InputError: a line that begins with the number of the line that is wrong.
    """
    try:
        return _Reader(text).document()
    except yaml.MarkedYAMLError as error:
        raise InputError(_explained(error, text)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        sign = ord(error.character) if isinstance(error.character, str) else error.character
        raise InputError(f"line {line}: the character U+{sign:04X}, which YAML forbids") from None
    except UnicodeEncodeError:
        raise InputError("not UTF-8 text") from None


class _Reader:
    """Builds plain data from the parser's events."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_Parser)
        self._anchors: dict[str, tuple[Any, int]] = {}  # the value, and how many it consists of
        self._values = 0

    def document(self) -> Any:
        next(self._events)  # the stream begins
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        found = self._value(next(self._events), ())
        next(self._events)  # the document ends
        if not isinstance(after := next(self._events), yaml.StreamEndEvent):
            raise InputError(f"line {_line(after)}: a second document begins ('---'); valid: one")
        return found

    def _value(self, event: Any, place: tuple[str, ...]) -> Any:
        before = self._values
        if isinstance(event, yaml.AliasEvent):
            return self._copy(event)
        self._count(1, event)
        if len(place) > DEEPEST:
            raise InputError(f"line {_line(event)}: nested deeper than {DEEPEST} levels")
        found: Any
        if isinstance(event, yaml.ScalarEvent):
            found = _scalar(event, place)
        else:
            _check_tag(event, place)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            found = self._list(place) if is_list else self._mapping(place)
        if event.anchor is not None:
            self._anchors[event.anchor] = (found, self._values - before)
        return found

    def _copy(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise InputError(
                f"line {_line(event)}: the alias *{event.anchor} refers to no anchor above"
            )
        found, size = self._anchors[event.anchor]
        self._count(size, event)
        return copy.deepcopy(found)

    def _count(self, values: int, event: Any) -> None:
        self._values += values
        if self._values > _MOST_VALUES:
            raise InputError(f"line {_line(event)}: more than {_MOST_VALUES} values until here")

    def _list(self, place: tuple[str, ...]) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self._value(event, (*place, str(len(found)))))
        return found

    def _mapping(self, place: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[Any] = []
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise InputError(f"line {_line(event)}: a list, mapping or alias as a key")
            key = str(event.value)
            if len(key) > _LONGEST_KEY:
                raise _wrong(f"a key of {len(key)} characters; valid: up to 500", place, event)
            if len(lines) == _MOST_KEYS:
                raise _wrong(f"more than {_MOST_KEYS} keys in one mapping", place, event)
            if key in lines:
                first, second = lines[key], _line(event)
                where = f"in lines {first} and {second}" if first != second else f"in line {first}"
                raise InputError(f"{'.'.join([*place, key])}: stands twice, {where}; valid: once")
            lines[key] = _line(event)
            value = self._value(next(self._events), (*place, key))
            if key == _MERGE and event.implicit[0]:
                merged = _to_merge(value, event)
            else:
                found[key] = value
        for each in merged:
            found = {**each, **found}
        return found


def _to_merge(value: Any, event: Any) -> list[Any]:
    merged = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in merged):
        raise InputError(f"line {_line(event)}: '<<' must be followed by the alias of a mapping")
    return merged


def _scalar(event: Any, place: tuple[str, ...]) -> Any:
    _check_tag(event, place)
    text: str = event.value
    if not event.implicit[0]:
        return text  # in quotes, or tagged as a text
    if text in _WORDS:
        return _WORDS[text]
    is_whole = _WHOLE.fullmatch(text)
    if not is_whole and not _NUMBER.fullmatch(text):
        return text
    if len(text) > _MOST_DIGITS:
        said = f"a number of {len(text)} digits; valid: up to {_MOST_DIGITS}"
        raise _wrong(said, place, event)
    if is_whole:
        digits = text.replace("_", "")
        return int(digits, 0 if digits.lstrip("+-")[:2] in ("0x", "0o") else 10)
    value = float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(value):
        raise _wrong(f"{text}: valid: finite numbers", place, event)
    return value


def _check_tag(event: Any, place: tuple[str, ...]) -> None:
    if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        raise _wrong(f"the tag {tag}; valid: values without a tag", place, event)


def _wrong(said: str, place: tuple[str, ...], event: Any) -> InputError:
    """An error that names the key and the line."""
    where = f"{'.'.join(place)}: " if place else ""
    return InputError(f"line {_line(event)}: {where}{said}")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _explained(error: yaml.MarkedYAMLError, text: str) -> str:
    said = str(error.problem or error)
    for part, words in _WHERE_IT_BEGINS:
        if part in said and (mark := error.context_mark or error.problem_mark):
            return f"line {mark.line + 1}: {words}"
    mark = error.problem_mark
    if mark is None:
        return said
    said = next((words for part, words in _HERE if part in said), said)
    if "start any token" in said:
        sign = text.splitlines()[mark.line][mark.column : mark.column + 1]
        said = f"no value can begin with {sign!r}; put it into quotes"
        if sign == "\t":
            said = "a tab before a key or value; YAML indents with spaces"
    return f"line {mark.line + 1}: {said}"
