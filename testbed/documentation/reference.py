"""`python -m testbed.documentation.reference` writes the generated parts of the reference's pages.

Each stands between `<!-- reference NAME: begin -->` and the same with `end` in a page of docs/.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml
from typer.cli import get_docs_for_click

from analysis.data.frame_columns import FRAMES, LABELS, unit_of
from analysis.data.metrics import METRICS
from analysis.data.program_metrics import KINDS
from testbed.cli.verbs import app
from testbed.experiment import Experiment, json_schema
from testbed.shared import docstrings, own_code, units
from testbed.shared.named_sections import all_sections
from testbed.shared.registry import Registry
from testbed.training.filling import FILLINGS
from testbed.training.models import MODELS
from testbed.transport.policies.tolerance import POLICIES
from testbed.transport.protocol_config import REGISTRIES
from testbed.verdict.gate_explanations import GATES

DOCS = Path(__file__).resolve().parents[2] / "docs"
AXES: dict[str, Registry[Any]] = {
    "gather, broadcast": POLICIES,
    **{key: each for key, each in REGISTRIES.items() if each is not POLICIES},
    "filling": FILLINGS,
}
_FILES = Path(__file__).with_name("run_directory_format.yaml")
_PART = r"(<!-- reference ({}): begin -->\n).*?(<!-- reference \2: end -->)"
_OWN_UNITS = {"count": "", "per_s": "1/s"}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
    "minItems": "{} or more",
    "maxItems": "up to {}",
    "maxLength": "up to {} characters",
    "pattern": "`{}`",
}
_TYPES = {
    "integer": "whole number",
    "string": "text",
    "array": "list",
    "boolean": "true or false",
    "object": "mapping",
}
_MODELS = "testbed.training.models"
Schema = Mapping[str, Any]


def _table(*header: str, rows: Iterable[Sequence[object]]) -> str:
    lines: list[Sequence[object]] = [header, ["---"] * len(header), *rows]
    cells = ([" ".join(str(each).replace("|", "\\|").split()) for each in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text and text[0].upper() + text[1:] + "." * (not text.endswith((".", "?", "!", ":")))


def verbs() -> str:
    """All verbs with their options, as Typer describes them."""
    group = typer.main.get_command(app)
    text = get_docs_for_click(obj=group, ctx=typer.Context(group, info_name="./lab"), name="./lab")
    text = text.replace("```console\n$ ", "```text\n").replace(
        "* `--help`: Show this message and exit.\n", ""
    )
    return text.partition("**Commands**")[2].partition("\n\n## ")[2].join(["## ", ""])


def keys() -> str:
    """A section for each part of an experiment, a table of keys in each."""
    found = json_schema.build()
    walk = _Walk(found["$defs"])
    text = "".join([*walk.section("The experiment", found, "##"), *walk.below("", found)])
    arms = {"arms.NAME": "Arm", "arms.NAME, of programs": "ProgramsArm"}
    arms["arms.NAME, of torchrun"] = "TorchrunArm"
    return text + "".join(
        part for title, name in arms.items() for part in walk.nested(title, found["$defs"][name])
    )


class _Walk:
    """Walks through a schema; what several keys refer to stands where it is met first."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._told: set[str] = set()

    def section(self, title: str, schema: Schema, marks: str = "###") -> Iterator[str]:
        rows = [
            self._row(key, each, key in schema.get("required", ()))
            for key, each in schema["properties"].items()
            if isinstance(each, Mapping)
        ]
        introduction = schema.get("description", "")
        yield f"{marks} {title}\n\n" + (f"{introduction}\n\n" if introduction else "")
        yield _table("key", "value", "default", "meaning", rows=rows) + "\n" if rows else ""

    def below(self, path: str, schema: Schema) -> Iterator[str]:
        for key, each in schema["properties"].items():
            if isinstance(each, Mapping):
                yield from self.nested(f"{path}{key}", each)

    def nested(self, path: str, schema: Schema) -> Iterator[str]:
        """The sections of a key that has keys itself."""
        if (name := schema.get("$ref", "")) in self._told:
            return
        if name.startswith("#/$defs/axis."):
            return
        self._told |= {name} - {""}
        schema = self._resolved(schema)
        schema = schema.get("else", schema)  # a name alone, or a mapping
        for each in schema.get("anyOf", schema.get("oneOf", ())):
            yield from self.nested(path, each)
        if rules := self._rules(schema):
            yield from self._variants(path, rules)
        elif schema.get("properties"):
            yield from self.section(path, schema)
            yield from self.below(f"{path}.", schema)
        for key, mark in (("items", "[]"), ("additionalProperties", ".NAME")):
            if isinstance(schema.get(key), Mapping):
                yield from self.nested(path + mark, schema[key])

    def _variants(self, path: str, rules: Mapping[tuple[str, str], Schema]) -> Iterator[str]:
        """The keys of all kinds, and those of each kind."""
        (key, _), first = next(iter(rules.items()))
        same = {
            name: each
            for name, each in first["properties"].items()
            if all(rule["properties"].get(name) == each for rule in rules.values())
        }
        if same:
            yield from self.section(f"{path}: keys of all kinds", {"properties": same})
            yield from self.below(f"{path}.", {"properties": same})
        for (_, value), rule in rules.items():
            of_kind = {
                name: each
                for name, each in rule["properties"].items()
                if name not in same and name != key
            }
            yield from self.section(f"{path}: `{key}: {value}`", {**rule, "properties": of_kind})
            yield from self.below(f"{path}.", {"properties": of_kind})

    def _rules(self, schema: Schema) -> dict[tuple[str, str], Schema]:
        """(Key that decides, its value) -> the section that it brings with it."""
        found: dict[tuple[str, str], Schema] = {}
        for rule in schema.get("allOf", ()):
            for key, value in rule["if"].get("properties", {}).items():
                if "const" in value or rule["then"].get("additionalProperties") is False:
                    then = self._resolved(rule["then"])
                    found[key, value.get("const", "tcp-NAME")] = then
        return found

    def _resolved(self, schema: Schema) -> Schema:
        name = schema.get("$ref", "").removeprefix("#/$defs/")
        return {**schema, **self._definitions[name]} if name else schema

    def _row(self, key: str, schema: Schema, required: bool) -> Sequence[str]:
        unit = units.of(key)
        forms = schema.get("anyOf", schema.get("oneOf", [schema]))
        if unit:
            forms = [each for each in forms if each != json_schema.with_unit(unit)]
        values = dict.fromkeys(_value(each) for each in forms if each.get("type") != "null")
        default = "required" if required else _default(schema)
        value = " or ".join(values) + (f", in {unit.words}" if unit else "")
        return f"`{key}`", value, default, _sentence(schema.get("description", ""))


def _value(schema: Schema) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    if schema.get("$ref", "").startswith("#/$defs/axis."):
        return "[name](axes.md) with options"
    if schema.get("pattern") == own_code.PATTERN:
        return "code of your own"
    kind = schema.get("type", "name or mapping" if "else" in schema else "mapping")
    kinds = kind if isinstance(kind, list) else [kind]
    parts = [" or ".join(_TYPES.get(str(each), str(each)) for each in kinds if each != "null")]
    parts += [form.format(_number(schema[key])) for key, form in _BOUNDS.items() if key in schema]
    if schema.get("items"):
        parts.append(f"each {_value(schema['items'])}")
    return ", ".join(filter(None, parts))


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value}"


def _default(schema: Schema) -> str:
    default = schema.get("default")
    if isinstance(default, dict) and default:
        return "see below"
    return "none" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"


def axes() -> str:
    """All names that an experiment may use, with the options of those that have some."""
    parts = []
    for key, registry in AXES.items():
        entries = {name: registry.entry(name) for name in registry}
        files = Counter(map(inspect.getmodule, entries.values()))
        rows = [row for name, each in entries.items() for row in _entry(name, each, files)]
        parts.append(f"## {registry.axis}\n\nKey: `arms.NAME.{key}`.\n")
        parts.append(_table("name", "option", "default", "meaning", rows=rows))
    models = [
        (
            f"`{name}`",
            each.inputs,
            docstrings.first_sentence(
                pkgutil.resolve_name(f"{_MODELS}.{each.module}:{each.function}")
            ),
        )
        for name, each in MODELS.items()
    ]
    parts.append("## models\n\nKey: `training.model`.\n")
    parts.append(_table("name", "takes", "what it is", rows=models))
    for path, section in all_sections(Experiment):
        named = [(f"`{name}`", section.meaning(name)) for name in section.registry]
        parts.append(f"## {path}\n\n[Their keys](experiment-yaml.md).\n")
        parts.append(_table("name", "what it is", rows=named))
    return "\n".join(parts)


def _entry(name: str, factory: Callable[..., Any], files: Counter[Any]) -> Iterator[Sequence[str]]:
    """A row for the entry of an axis, and one for each of its options."""
    file = inspect.getmodule(factory)
    described = file if files[file] == 1 else factory  # a file of its own describes its entry
    yield f"`{name}`", "", "", docstrings.first_sentence(described)
    meanings = docstrings.arguments(factory)
    for option, each in inspect.signature(factory).parameters.items():
        default = "" if each.default is inspect.Parameter.empty else f"`{each.default}`"
        yield "", f"`{option}`", default, _sentence(meanings.get(option, ""))


def gates() -> str:
    """A paragraph for each gate; two keys with one explanation share it."""
    return "\n".join(
        f"### Gate: {about.title}\n\n{about.measured}\n\n- Evidence: `{about.evidence}`\n"
        f"- Usual cause: {about.causes}\n- What to do: {about.remedy}\n"
        for about in {each.title: each for each in GATES.values()}.values()
    )


@cache
def _written() -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, Any] = yaml.safe_load(_FILES.read_text(encoding="utf-8"))
    return found


@cache
def sections() -> dict[str, dict[str, dict[str, str]]]:
    """What the files of results hold: section -> file -> key path -> meaning."""
    return {
        section: {name: _keys_of_file(entry["keys"]) for name, entry in files.items()}
        for section, files in _written().items()
    }


def _keys_of_file(written: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, meaning in written.items():
        if isinstance(meaning, str):
            found[key] = meaning
            continue
        columns = FRAMES[meaning["frame"]].columns if "frame" in meaning else ()
        told = {each.name + "[]" * (each.type == "texts"): each.meaning for each in columns}
        if "from" in meaning:
            told = docstrings.arguments(pkgutil.resolve_name(meaning["from"])) | told
        for each, text in {**told, **meaning.get("keys", {})}.items():
            if each not in meaning.get("leave_out", ()):
                found.setdefault(f"{key}.{each}" if key else each, text)
    return found


def files(section: str) -> str:
    """A heading and a table for each file of a section."""
    return "\n".join(
        f"## {name}\n\n{_written()[section][name]['what']}\n\n"
        + _table(*("key", "unit", "meaning"), rows=_of_file(keys))
        for name, keys in sections()[section].items()
    )


def _of_file(keys: Mapping[str, str]) -> Iterator[Sequence[str]]:
    return ((f"`{key}`", unit_of(key), _sentence(text)) for key, text in keys.items())


def all_files() -> str:
    """The list of all files with what they are."""
    places = {"documents": "", "events": "events/", "samples": "samples/"}
    rows = [
        (f"`{place}{name}`", about["what"])
        for section, place in places.items()
        for name, about in _written()[section].items()
    ]
    return _table("file", "what it holds", rows=rows)


def frames() -> str:
    """A heading and a table for each frame that results have."""
    labels = [(f"`{each.name}`", "", _sentence(each.meaning)) for each in LABELS]
    parts = ["## All frames\n\n" + _table("column", "unit", "meaning", rows=labels)]
    for name, frame in FRAMES.items():
        rows = [
            (f"`{each.name}`", each.type.removesuffix("s"), each.unit, _sentence(each.meaning))
            for each in frame.columns
        ]
        parts.append(f"## {name}\n\nOne row for each {frame.row}. Source: `{frame.source}`.\n")
        parts.append(_table("column", "type", "unit", "meaning", rows=rows))
    return "\n".join(parts)


def metrics() -> str:
    """The metrics of `summary.json` with their units and meanings."""
    named = [(each.name, each.unit, each.meaning) for each in METRICS]
    named += [
        (f"{part}.NAME.{what}", unit, told) for (part, what), (unit, _, told) in KINDS.items()
    ]
    rows = [
        (f"`{name}`", _OWN_UNITS.get(unit, unit), _sentence(told)) for name, unit, told in named
    ]
    return _table("metric", "unit", "meaning", rows=rows)


def parts() -> dict[str, str]:
    """All parts by name."""
    made: dict[str, Callable[[], str]] = {"files": all_files}
    made |= {each.__name__: each for each in (verbs, keys, axes, gates, frames, metrics)}
    return {**{name: make() for name, make in made.items()}, **{s: files(s) for s in sections()}}


def written(page: str, found: Mapping[str, str]) -> str:
    """A page with its parts as they should be."""
    names = "|".join(map(re.escape, found))
    return re.sub(
        _PART.format(names), lambda m: f"{m[1]}\n{found[m[2]]}\n{m[3]}", page, flags=re.DOTALL
    )


def main() -> None:
    """Write all pages that have parts."""
    found = parts()
    for path in sorted(DOCS.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if (after := written(before, found)) != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
