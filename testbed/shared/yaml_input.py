"""Reads YAML that a person wrote as plain data: a file, or a value of `--set` that replaces one.

Stricter than YAML: a key is a text and stands once, no tag makes an object, a date is a text,
numbers are finite. `20e6` is a number, as in YAML 1.2.
"""

from __future__ import annotations

import errno
import math
import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from testbed.shared import units
from testbed.shared.input_error import InputError as InputError
from testbed.shared.input_error import shown

SUFFIXES = (".yaml", ".yml")
_MOST_BYTES = 1 << 20
_DEEPEST = 40
_MOST_VALUES = 100_000
_MOST_KEYS = 1_000  # of one mapping
_LONGEST_KEY = 500
_MOST_DIGITS = 60
_WORDS = {"": None, "~": None} | {
    form: value
    for words, value in (("null", None), ("true yes on", True), ("false no off", False))
    for word in words.split()
    for form in (word, word.title(), word.upper())
}
_WHOLE = re.compile(r"[-+]?(0x[0-9a-fA-F][0-9a-fA-F_]*|0o[0-7][0-7_]*|[0-9][0-9_]*)")
_NUMBER = re.compile(
    r"[-+]?([0-9][0-9_]*(?:\.[0-9_]*)?([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?"
    r"|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
)
_PLAIN = "!plain"
_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")} | {"!", _PLAIN}
# What the parser says, and what it means to somebody who has written the line.
_HERE = {
    "mapping values are not allowed": "no key can stand here; look for uneven indentation, a ':' "
    "without a space after it, or a text that needs quotes",
    "undefined alias": "the alias {} refers to no anchor above",
    "expected <block end>": "the indentation fits no line above",
    "did not find expected key": "the indentation fits no line above, or a quote is missing",
    "block sequence entries are not allowed": "a '- ' where no list entry can be",
    "expected '-' indicator": "a key where the list above goes on; look at the indentation",
    "block collections are not allowed": "a list or mapping must begin on a line of its own",
    "exceeded maximum depth": f"nested deeper than {_DEEPEST} levels",
    "found a tab": "a tab in the indentation; YAML indents with spaces",
    "but found another document": "a second document begins ('---'); valid: one",
}
# The same, where the mistake is in the line in which the thing begins that the parser was reading.
_WHERE_IT_BEGINS = {
    "could not find expected ':'": "a key without its value; valid: 'key: value', with a space",
    "expected ',' or ']'": "this list is not closed; valid: ',' between entries, ']' at the end",
    "expected ',' or '}'": "this mapping is not closed; valid: ',' between keys, '}' at the end",
    "expected node content": "a value is missing, or a bracket is not closed",
    "unexpected end of stream": "this quote is not closed",
    "unexpected document indicator": "this quote is not closed",
}
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is there


class _Nodes(_Parser):
    yaml_implicit_resolvers: ClassVar = {None: [(_PLAIN, re.compile(".*", re.DOTALL))]}


def read(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file, values with a unit as plain numbers."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"larger than {_MOST_BYTES} bytes")
        document = parse(path.read_text(encoding="utf-8-sig"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except OSError as error:
        words = "a loop of symbolic links" if error.errno == errno.ELOOP else error.strerror
        raise InputError(f"{path}: {words}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}: line {line}: not UTF-8 text") from None
    if document is None:
        raise InputError(f"{path}: empty; valid: a mapping of keys to values")
    if not isinstance(document, dict):
        raise InputError(f"{path}: must be a mapping of keys to values")
    converted: dict[str, Any] = units.converted(document)
    return converted


def override(document: dict[str, Any], text: str) -> str:
    """Apply one `key.path=value`, whose value is read as YAML; return the key."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"--set {text}: valid: KEY=VALUE, for example --set rounds=10")
    try:
        replace(document, key, value_of(key, value))
    except InputError as error:
        raise InputError(f"--set {text}: {error}") from None
    return key


def value_of(key: str, text: str) -> Any:
    try:
        return units.converted(parse(text, key), key)
    except InputError as error:
        raise InputError(str(error).removeprefix("line 1: ")) from None


def replace(document: dict[str, Any], key: str, value: Any) -> None:
    """Replace what a dotted path names; numbers index lists. The schema checks the result."""
    *parents, last = _divided(document, key)
    place: Any = document
    for number, part in enumerate(parents):
        if isinstance(place, dict) and place.get(part) is None:
            place[part] = {}
        place = place[_index(place, part, key, parents[:number])]
    place[_index(place, last, key, parents)] = value


def within(key: str, other: str) -> bool:
    """Tell whether a key path is the other one or leads to a part of it."""
    return f"{key}.".startswith(f"{other}.")


def overlap(key: str, other: str) -> bool:
    return within(key, other) or within(other, key)


def _divided(document: dict[str, Any], key: str) -> list[str]:
    first, *others = key.split(".")
    if len(others) > _DEEPEST:
        raise InputError(f"{shown(key)}: {len(others)} dots; valid: up to {_DEEPEST}")
    if "" in others:
        raise InputError(f"{key}: a key is missing beside a dot; valid: such as topology.workers")
    if first == "factors" and len(others) > 1:
        factors = document.get(first)
        if not isinstance(factors, dict) or others[0] not in factors:
            return [first, ".".join(others)]
    return [first, *others]


def _index(place: Any, part: str, key: str, above: list[str]) -> str | int:
    where = ".".join(above)
    if isinstance(place, dict):
        return part
    if not isinstance(place, list):
        raise InputError(f"{key}: {where} is {shown(place)}, which has no keys")
    if not part.isdecimal() or int(part) >= len(place):
        valid = "none, the list is empty"
        if place:
            valid = "0" if len(place) == 1 else f"0 to {len(place) - 1}"
        raise InputError(f"{key}: there is no entry {part!r} in {where}; valid: {valid}")
    return int(part)


def parse(text: str, key: str = "") -> Any:
    """Read the one document in a text, which may be the value of a key."""
    try:
        _check_depth(text)
        node = _Nodes(text).get_single_node()
        return None if node is None else _Plain().value(node, (key,) if key else ())
    except yaml.MarkedYAMLError as error:
        raise InputError(_explained(error, text)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        sign = ord(error.character) if isinstance(error.character, str) else error.character
        raise InputError(f"line {line}: the character U+{sign:04X}, which YAML forbids") from None
    except UnicodeEncodeError:
        raise InputError("not UTF-8 text") from None


def _check_depth(text: str) -> None:
    """Refuse what nests too deep, before libyaml walks into it: that overflows its stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Parser):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise _wrong(f"nested deeper than {_DEEPEST} levels", (), event)
        depth -= isinstance(event, yaml.CollectionEndEvent)


class _Plain:
    def __init__(self) -> None:
        self._values = 0

    def value(self, node: Any, place: tuple[str, ...]) -> Any:
        self._values += 1
        if self._values > _MOST_VALUES:
            raise _wrong(f"more than {_MOST_VALUES} values until here", (), node)
        if len(place) > _DEEPEST:
            raise _wrong(f"nested deeper than {_DEEPEST} levels", (), node)
        if node.tag not in _TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise _wrong(f"the tag {tag}; valid: values without a tag", place, node)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, place) if node.tag == _PLAIN else node.value
        if isinstance(node, yaml.SequenceNode):
            return [self.value(below, (*place, str(n))) for n, below in enumerate(node.value)]
        return self._mapping(node, place)

    def _mapping(self, node: Any, place: tuple[str, ...]) -> dict[str, Any]:
        if len(node.value) > _MOST_KEYS:
            raise _wrong(f"more than {_MOST_KEYS} keys in one mapping", place, node)
        mapping: dict[str, Any] = {}
        merged: list[Any] = []
        lines: dict[str, int] = {}
        for key, below in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _wrong("a list, mapping or alias as a key", (), key)
            name, line = str(key.value), _line(key)
            if len(name) > _LONGEST_KEY:
                raise _wrong(f"a key of {len(name)} characters; valid: up to 500", place, key)
            if first := lines.get(name):
                where = f"in lines {first} and {line}" if first != line else f"in line {first}"
                raise InputError(f"{'.'.join([*place, name])}: stands twice, {where}; valid: once")
            lines[name] = line
            value = self.value(below, (*place, name))
            if name != "<<" or key.tag != _PLAIN:
                mapping[name] = value
                continue
            merged = value if isinstance(value, list) else [value]
            if not all(isinstance(aliased, dict) for aliased in merged):
                raise _wrong("'<<' must be followed by the alias of a mapping", (), key)
        for aliased in merged:
            mapping = {**aliased, **mapping}
        return mapping


def _scalar(node: Any, place: tuple[str, ...]) -> Any:
    text: str = node.value
    if text in _WORDS:
        return _WORDS[text]
    is_whole = _WHOLE.fullmatch(text)
    if not is_whole and not _NUMBER.fullmatch(text):
        return text
    if len(text) > _MOST_DIGITS:
        what = f"a number of {len(text)} digits; valid: up to {_MOST_DIGITS}"
        raise _wrong(what, place, node)
    if is_whole:
        digits = text.replace("_", "")
        return int(digits, 0 if digits.lstrip("+-")[:2] in ("0x", "0o") else 10)
    value = float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(value):
        raise _wrong(f"{text}: valid: finite numbers", place, node)
    return value


def _wrong(what: str, place: tuple[str, ...], node: Any) -> InputError:
    where = f"{'.'.join(place)}: " if place else ""
    return InputError(f"line {_line(node)}: {where}{what}")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _explained(error: yaml.MarkedYAMLError, text: str) -> str:
    what = ", ".join(filter(None, (error.context, error.problem)))
    for part, words in _WHERE_IT_BEGINS.items():
        if part in what and (mark := error.context_mark or error.problem_mark):
            return f"line {mark.line + 1}: {words}"
    mark = error.problem_mark
    if mark is None:
        return what
    here = "".join(text.splitlines()[mark.line : mark.line + 1])[mark.column :]
    what = next((words for part, words in _HERE.items() if part in what), error.problem or what)
    if "start any token" in what:
        what = f"no value can begin with {here[:1]!r}; put it into quotes"
        if here[:1] == "\t":
            what = "a tab before a key or value; YAML indents with spaces"
    word = re.split(r"[ ,}\]]", here)[0]
    return f"line {mark.line + 1}: {what.replace('{}', word)}"
