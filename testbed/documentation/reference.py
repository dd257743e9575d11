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

from analysis.data.logs import FRAMES, LABELS, unit_of
from analysis.data.metrics import IMPAIRED, REGISTRY
from testbed.cli.verbs import app
from testbed.experiment import Experiment, json_schema
from testbed.shared import docstrings, own_code, units
from testbed.shared.named_sections import all_sections
from testbed.shared.registry import Registry
from testbed.training.fillings import FILLINGS
from testbed.training.models import MODELS
from testbed.transport.presets import POLICIES, REGISTRIES
from testbed.verdict.explanation import MEANINGS
from testbed.verdict.gates import GATES, GateEntry

DOCS = Path(__file__).resolve().parents[2] / "docs"
AXES: dict[str, Registry[Any]] = {
    "gather, broadcast": POLICIES,
    **{key: registry for key, registry in REGISTRIES.items() if registry is not POLICIES},
    "filling": FILLINGS,
}
_FORMAT: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("run_directory_format.yaml").read_text("utf-8")
)
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
_TYPES = {"integer": "whole number", "string": "text", "array": "list", "object": "mapping"}
_TYPES |= {"boolean": "true or false"}
Schema = Mapping[str, Any]


def _table(*header: str, rows: Iterable[Sequence[object]]) -> str:
    lines: list[Sequence[object]] = [header, ["---"] * len(header), *rows]
    cells = ([" ".join(str(cell).replace("|", "\\|").split()) for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text and text[0].upper() + text[1:] + "." * (not text.endswith((".", "?", "!", ":")))


def verbs() -> str:
    group = typer.main.get_command(app)
    text = get_docs_for_click(obj=group, ctx=typer.Context(group, info_name="./lab"), name="./lab")
    text = text.replace("```console\n$ ", "```text\n").replace(
        "* `--help`: Show this message and exit.\n", ""
    )
    return text.partition("**Commands**")[2].partition("\n\n## ")[2].join(["## ", ""])


def keys() -> str:
    schema = json_schema.build()
    walk = _Walk(schema["$defs"])
    text = "".join(walk.table("The experiment", "", schema, marks="##"))
    arms = {"Arm": "", "ProgramsArm": ", of programs", "TorchrunArm": ", of torchrun"}
    for arm, of in arms.items():
        text += "".join(walk.sections(f"arms.NAME{of}", schema["$defs"][arm]))
    return text


class _Walk:
    """Walks through a schema; what several keys refer to stands where it is met first."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._visited: set[str] = set()

    def table(self, title: str, path: str, schema: Schema, marks: str = "###") -> Iterator[str]:
        """Yield a section of its own, then those of the keys in it that have keys themselves."""
        keys = {key: value for key, value in schema["properties"].items() if value is not True}
        required, about = schema.get("required", ()), schema.get("description", "")
        yield f"{marks} {title}\n\n" + f"{about}\n\n" * bool(about)
        if rows := [_row(key, value, required=key in required) for key, value in keys.items()]:
            yield _table("key", "value", "default", "meaning", rows=rows) + "\n"
        for key, value in keys.items():
            yield from self.sections(f"{path}{key}", value)

    def sections(self, path: str, schema: Schema) -> Iterator[str]:
        if (name := schema.get("$ref", "")) in self._visited or name.startswith("#/$defs/axis."):
            return
        self._visited |= {name} - {""}
        schema = self._resolved(schema)
        schema = schema.get("else", schema)  # a name alone, or a mapping
        for form in schema.get("anyOf", schema.get("oneOf", ())):
            yield from self.sections(path, form)
        tables = self._kinds(path, schema)
        if not tables and schema.get("properties"):
            tables = {path: schema}
        for title, table in tables.items():
            yield from self.table(title, f"{path}.", table)
        for key, mark in (("items", "[]"), ("additionalProperties", ".NAME")):
            if isinstance(schema.get(key), Mapping):
                yield from self.sections(path + mark, schema[key])

    def _kinds(self, path: str, schema: Schema) -> dict[str, Schema]:
        """The keys of all kinds, and those of each kind that another key names, by title."""
        kinds: dict[str, tuple[str, Schema]] = {}
        for rule in schema.get("allOf", ()):
            for key, value in rule["if"].get("properties", {}).items():
                if "const" in value or rule["then"].get("additionalProperties") is False:
                    title = f"{path}: `{key}: {value.get('const', 'tcp-NAME')}`"
                    kinds[title] = key, self._resolved(rule["then"])
        same = _shared([of_kind["properties"] for _, of_kind in kinds.values()])
        tables: dict[str, Schema] = {}
        if same:
            tables[f"{path}: keys of all kinds"] = {"properties": same}
        for title, (key, of_kind) in kinds.items():
            of_all = {k: v for k, v in of_kind["properties"].items() if _alike(v, same.get(k))}
            own = {k: v for k, v in of_kind["properties"].items() if k not in (key, *of_all)}
            changed = {
                k: v.get("default") for k, v in of_all.items() if v != same[k] and k != "name"
            }
            sets = ", ".join(f"`{k}: {value}`" for k, value in changed.items() if value)
            about = of_kind.get("description", "") + f" It sets {sets}." * bool(sets)
            tables[title] = {**of_kind, "properties": own, "description": about}
        return tables

    def _resolved(self, schema: Schema) -> Schema:
        name = schema.get("$ref", "").removeprefix("#/$defs/")
        return {**schema, **self._definitions[name]} if name else schema


def _alike(one: Any, other: Any) -> bool:
    """Return whether two keys differ in nothing but their defaults."""
    return bool(one and other) and {**one, "default": 0} == {**other, "default": 0}


def _shared(kinds: Sequence[Schema]) -> Schema:
    """The keys of all kinds that are alike in most of them, with the default of most."""
    shared = {}
    for key in (kinds or [{}])[0]:
        schemas: list[Any] = [kind.get(key) for kind in kinds]
        if all(isinstance(schema, Mapping) for schema in schemas):
            of_most = max(schemas, key=schemas.count)
            if 2 * sum(_alike(schema, of_most) for schema in schemas) > len(schemas):
                one_each = schemas.count(of_most) == 1  # such as names
                shared[key] = {**of_most, "default": None} if one_each else of_most
    return shared


def _row(key: str, schema: Schema, *, required: bool) -> Sequence[str]:
    unit, default = units.of(key), schema.get("default")
    forms = schema.get("anyOf", schema.get("oneOf", [schema]))
    with_unit = json_schema.with_unit(unit) if unit else None
    shown = [_value(form) for form in forms if form != with_unit and form.get("type") != "null"]
    value = " or ".join(dict.fromkeys(shown)) + (f", in {unit.words}" if unit else "")
    text = "none" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"
    text = "see below" if isinstance(default, dict) and default else text
    text = "required" if required else text
    return f"`{key}`", value, text, _sentence(schema.get("description", ""))


def _value(schema: Schema) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("$ref", "").startswith("#/$defs/axis."):
        return "[name](axes.md) with options"
    if schema.get("pattern") == own_code.PATTERN:
        return "code of your own"
    kind = schema.get("type", "name or mapping" if "else" in schema else "mapping")
    parts = [_TYPES.get(kind, kind)]
    for key, form in _BOUNDS.items():
        if (bound := schema.get(key)) is not None:
            parts.append(form.format(f"{bound:,}" if isinstance(bound, int) else bound))
    if schema.get("items"):
        parts.append(f"each {_value(schema['items'])}")
    return ", ".join(filter(None, parts))


def axes() -> str:
    parts = []
    for key, registry in AXES.items():
        entries = {name: registry.entry(name) for name in registry}
        files = Counter(map(inspect.getmodule, entries.values()))
        rows = [row for name, entry in entries.items() for row in _entry(name, entry, files)]
        parts.append(f"## {registry.axis}\n\nKey: `arms.NAME.{key}`.\n")
        parts.append(_table("name", "option", "default", "meaning", rows=rows))
    models = []
    for name, model in MODELS.items():
        build = pkgutil.resolve_name(f"testbed.training.models.{model.builder}")
        models.append((f"`{name}`", model.inputs, docstrings.first_sentence(build)))
    parts.append("## models\n\nKey: `training.model`.\n")
    parts.append(_table("name", "takes", "what it is", rows=models))
    for path, section in all_sections(Experiment):
        named = [(f"`{name}`", section.meaning(name)) for name in section.registry]
        parts.append(f"## {path}\n\n[Their keys](experiment-yaml.md).\n")
        parts.append(_table("name", "what it is", rows=named))
    return "\n".join(parts)


def _entry(name: str, factory: Callable[..., Any], files: Counter[Any]) -> Iterator[Sequence[str]]:
    file = inspect.getmodule(factory)
    described = file if files[file] == 1 else factory  # a file of its own describes its entry
    yield f"`{name}`", "", "", docstrings.first_sentence(described)
    meanings = docstrings.arguments(factory)
    for option, parameter in inspect.signature(factory).parameters.items():
        default = "" if parameter.default is inspect.Parameter.empty else f"`{parameter.default}`"
        yield "", f"`{option}`", default, _sentence(meanings.get(option, ""))


@cache
def sections() -> dict[str, dict[str, dict[str, str]]]:
    """The content of the files of results: section -> file -> key path -> meaning."""
    return {
        section: {name: _keys_of_file(entry["keys"]) for name, entry in of_files.items()}
        for section, of_files in _FORMAT.items()
    }


def _keys_of_file(written: Mapping[str, Any]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for above, meaning in written.items():
        if isinstance(meaning, str):
            keys[above] = meaning
            continue
        columns = FRAMES[meaning["frame"]].columns if "frame" in meaning else ()
        of_file = {
            column.name + "[]" * (column.type == "texts"): column.meaning for column in columns
        }
        if "from" in meaning:
            of_file = docstrings.arguments(pkgutil.resolve_name(meaning["from"])) | of_file
        for key, text in {**of_file, **meaning.get("keys", {})}.items():
            if key not in meaning.get("leave_out", ()):
                keys.setdefault(f"{above}.{key}" if above else key, text)
    return keys


def _files(section: str) -> str:
    return "\n".join(
        f"## {name}\n\n{_FORMAT[section][name]['what']}\n\n"
        + _meanings("key", [(key, unit_of(key), text) for key, text in keys.items()])
        for name, keys in sections()[section].items()
    )


def _meanings(what: str, named: Iterable[tuple[str, str, str]]) -> str:
    rows = [(f"`{name}`", unit, _sentence(text)) for name, unit, text in named]
    return _table(what, "unit", "meaning", rows=rows)


def files() -> str:
    rows = [
        (f"`{folder}{name}`", about["what"])
        for section, folder in (("documents", ""), ("events", "events/"), ("samples", "samples/"))
        for name, about in _FORMAT[section].items()
    ]
    return _table("file", "what it holds", rows=rows)


def frames() -> str:
    parts = ["## All frames\n\n" + _meanings("column", [(e.name, "", e.meaning) for e in LABELS])]
    for name, frame in FRAMES.items():
        rows = [
            (f"`{e.name}`", e.type.removesuffix("s"), unit_of(e.name), _sentence(e.meaning))
            for e in frame.columns
        ]
        parts.append(f"## {name}\n\nOne row for each {frame.row}. Source: `{frame.source}`.\n")
        parts.append(_table("column", "type", "unit", "meaning", rows=rows))
    return "\n".join(parts)


def metrics() -> str:
    units_here = {"count": "", "per_s": "1/s"}
    rows = [
        (name.replace("{}", "NAME"), units_here.get(metric.unit, metric.unit), metric.meaning)
        for name, metric in REGISTRY.items()
        if not name.startswith(IMPAIRED)
    ]
    return _meanings("metric", rows)


def parts() -> dict[str, str]:
    made = {part.__name__: part() for part in (files, verbs, keys, axes, frames, metrics)}
    made["verdicts"] = _table("verdict", "meaning", rows=MEANINGS.items())
    made["limits"] = _table(*GateEntry.ROW, rows=(gate.row for gate in GATES))
    made["gates"] = "\n".join(gate.paragraph for gate in GATES)
    return made | {section: _files(section) for section in _FORMAT}


def written(page: str, made: Mapping[str, str]) -> str:
    """A page with its parts as they should be."""
    part = rf"(<!-- reference ({'|'.join(made)}): begin -->\n).*?(<!-- reference \2: end -->)"
    return re.sub(part, lambda m: f"{m[1]}\n{made[m[2]]}\n{m[3]}", page, flags=re.DOTALL)


if __name__ == "__main__":
    made = parts()
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (current := written(page, made)) != page:
            path.write_text(current, encoding="utf-8")
            print(path.relative_to(DOCS.parent))
