"""The reference of the YAML keys, from the models that read an experiment."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from markdown.extensions.toc import slugify
from pydantic import BaseModel

from controllers.impairments import ImpairmentParameters
from controllers.impairments.repetition import (
    EveryRounds,
    EverySeconds,
    RandomRounds,
    RandomSeconds,
)
from testbed.documentation import markup
from testbed.experiment import Experiment, Limits, Transport, json_schema
from testbed.experiment.arm import Filling
from testbed.experiment.common_sections import Simulation
from testbed.shared import docstrings, units
from testbed.shared.named_sections import OneOf, all_sections
from testbed.training.learning_rate import Schedule
from testbed.training.settings import Training
from testbed.transport import protocols
from testbed.workload.settings import Program, ProgramsArm
from testbed.workload.torchrun import TorchrunArm
from topologies import LinkParameters, TopologyParameters

Model = type[BaseModel]
_HEADER = ("key", "value", "default", "meaning")
_UNITS = {"_s": "s", "_bps": "bit/s", "_bytes": "bytes", "_degrees": "degrees"}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "multiple of {}",
    "minItems": "{} or more entries",
    "maxItems": "up to {} entries",
    "minLength": "{} or more characters",
    "maxLength": "up to {} characters",
    "minProperties": "{} or more",
    "pattern": "`{}`",
}
_PLURALS = {
    "text": "texts",
    "number": "numbers",
    "whole number": "whole numbers",
    "mapping": "mappings",
}
_TYPES = {
    "integer": "whole number",
    "array": "list",
    "object": "mapping",
    "boolean": "true or false",
}


def reference() -> str:
    """A section for each part of an experiment, a table of keys in each."""
    variants = {path: _variants(path, each) for path, each in all_sections(Experiment)}
    link = set(LinkParameters.model_fields)
    return "\n".join(
        [
            _section("The experiment", Experiment, level=2),
            _heading(2, "topology", "The network; see also [topologies](axes.md#topologies)."),
            _table(TopologyParameters, leave_out=link - {"rate_bps"}),
            _section("topology: keys of a link", LinkParameters),
            variants["topology"],
            _heading(2, "workload", _WORKLOAD),
            variants["workload"],
            _section("workload.programs[]", Program),
            _section("training", Training, level=2),
            variants["training.dataset"],
            variants["training.split"],
            _heading(3, "training.schedule: keys of all kinds")
            + _table(Schedule, {"kind"})
            + variants["training.schedule"],
            variants["training.pace"],
            _heading(2, "phases", _PHASES),
            variants["phases"],
            _section("transport", Transport, level=2),
            _heading(2, "arms", _ARMS),
            *map(_protocol, protocols.PRESETS),
            _section("arms.NAME.filling", Filling),
            _heading(3, "arms.NAME, of programs", _ARMS_OF_PROGRAMS),
            _table(ProgramsArm),
            _section("arms.NAME, of torchrun", TorchrunArm),
            _heading(2, "impairments", _IMPAIRMENTS),
            _heading(3, "impairments[]: keys of all kinds", _introduction(ImpairmentParameters)),
            _table(ImpairmentParameters, leave_out={"kind"}),
            _heading(3, "impairments[].rounds and at_s", _REPETITION),
            *map(_repetition, _REPETITIONS),
            variants["impairments[]"],
            _section("limits", Limits, level=2),
            _section("simulation", Simulation, level=2),
        ]
    )


_REPETITIONS: tuple[Model, ...] = (EveryRounds, RandomRounds, EverySeconds, RandomSeconds)
_PHASES = (
    "What decides whether a round is critical. Without `detector` it is `gradient-norm`; "
    "see also [detectors](axes.md#phase-detectors)."
)
_ARMS = (
    "Each arm has a name, a `protocol`, and the keys in which it differs from that preset. "
    "An axis takes an entry's name, with options after a colon: `streaming:residual=0.05`. "
    "[The axes](axes.md) list all entries and options. "
    "`learning_rate` is the arm's own, in place of the training's."
)
_WORKLOAD = (
    "What runs on the hosts. Without this key it is the built-in training. "
    "[Programs](../how-to/programs.md) or [a script for torchrun](../how-to/ddp-in-the-lab.md) "
    "take its place; then there are no keys of training, transport and phases, and `rounds` may "
    "be left out."
)
_ARMS_OF_PROGRAMS = (
    "Each arm says what it changes: the key below, or by the name of a program a mapping of "
    "[its keys](#workloadprograms). Without `arms` there is one, `programs`, which changes nothing."
)
_IMPAIRMENTS = "A list; each entry has a `kind` and says whom it hits, when, and for how long."
_REPETITION = "Either a list of rounds (of seconds), or one of these mappings."


def title(path: str, section: OneOf, name: str) -> str:
    """The heading of what a name brings with it."""
    return f"{path}: `{section.key}: {name}`"


def anchor(heading: str) -> str:
    """The anchor that the site gives a heading."""
    return slugify(heading.replace("`", ""), "-")


def rows(model: Model, leave_out: Iterable[str] = ()) -> list[tuple[str, ...]]:
    """The table rows of a model's keys."""
    schema = json_schema.of(model)
    required = schema.get("required", [])
    return [
        row(key, each, required=key in required)
        for key, each in schema["properties"].items()
        if key not in leave_out
    ]


def row(key: str, schema: Mapping[str, Any], *, required: bool = False) -> tuple[str, ...]:
    """One key: its name, type with unit and range, default, and meaning."""
    forms = schema.get("anyOf", schema.get("oneOf", [schema]))
    unit = next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), "")
    with_unit = [json_schema.with_unit(each) for each in units.UNITS]
    plain = [each for each in forms if each.get("type") != "null" and each not in with_unit]
    values = [_value(each, unit) for each in plain]
    return (
        markup.code(key),
        " or ".join(dict.fromkeys(values)),
        "required" if required else _default(schema),
        markup.sentence(schema.get("description", "")),
    )


def _value(schema: Mapping[str, Any], unit: str) -> str:
    if "enum" in schema or "const" in schema:
        return "one of " * ("enum" in schema) + _bounds(schema)
    return ", ".join(text for text in (_type(schema), unit, _bounds(schema)) if text)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return "mapping"
    kind = schema.get("type", "")
    if kind == "array" and "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])}"
    items = schema.get("items")
    if isinstance(items, dict) and "anyOf" in items:  # a number, or one with a unit
        items = items["anyOf"][0]
    if kind == "array" and isinstance(items, dict) and items.get("type"):
        inner = _type(items)
        return f"list of {_PLURALS.get(inner, 'pairs')}"
    if kind == "array":
        return "list"
    return {"string": "text", **_TYPES}.get(kind, kind) or "mapping"


def _bounds(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(markup.code(each) for each in schema.get("enum", [schema.get("const")]))
    texts = [form.format(_number(schema[key])) for key, form in _BOUNDS.items() if key in schema]
    if "minimum" in schema and "maximum" in schema:
        texts[:2] = [f"{_number(schema['minimum'])} to {_number(schema['maximum'])}"]
    inner = schema.get("items")
    if isinstance(inner, dict) and "anyOf" in inner:  # a number, or one with a unit
        inner = inner["anyOf"][0]
    if isinstance(inner, dict) and (of_each := _bounds(inner)):
        texts.append(f"each {of_each}")
    return ", ".join(texts)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and abs(value) > 9999 else f"{value}"


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema or schema["default"] is None:
        return "none"
    if isinstance(schema["default"], dict) and schema["default"]:
        return "see below"
    return markup.code(json.dumps(schema["default"], ensure_ascii=False))


def _heading(level: int, title: str, text: str = "") -> str:
    return f"{'#' * level} {title}\n\n" + (f"{text}\n\n" if text else "")


def _table(model: Model, leave_out: Iterable[str] = ()) -> str:
    found = rows(model, leave_out)
    return markup.table(_HEADER, found) + "\n" if found else "No further keys.\n\n"


def _section(title: str, model: Model, level: int = 3) -> str:
    return _heading(level, title, _introduction(model)) + _table(model)


def _introduction(model: Model) -> str:
    return re.split(r"\n\n(?:Args|Attributes):", inspect.cleandoc(model.__doc__ or ""))[0]


def _variants(path: str, section: OneOf) -> str:
    """A section for each name, with the keys that it adds or has another default for."""
    common = json_schema.of(section.base)["properties"]
    parts = []
    models = section.models()
    if section.own is not None:
        models["your own"] = section.own
    for name, model in models.items():
        keys = json_schema.of(model)["properties"]
        same = {key for key, each in keys.items() if each == common.get(key)}
        parts.append(_heading(3, title(path, section, name), _introduction(model)))
        parts.append(_table(model, {*same, section.key}))
    return "".join(parts)


def _repetition(model: Model) -> str:
    own = next(iter(key for key in ("every", "random") if key in model.model_fields))
    unit = "rounds" if "Rounds" in model.__name__ else "at_s"
    return _heading(4, f"{unit}: `{{{own}: ...}}`", docstrings.first_sentence(model)) + _table(
        model
    )


def _protocol(name: str) -> str:
    defaults = json_schema.protocol_defaults(name)
    own = set(protocols.PRESETS[name][1])
    found = []
    for key, default in defaults.items():
        if key in own and {"gather", "broadcast"} & own:
            continue
        schema = {**json_schema.setting(name, key), "default": default}
        found.append(row(key, schema))
    build = protocols.PRESETS[name][0]
    title = f"arms.NAME: `protocol: {name}`"
    return _heading(3, title, inspect.cleandoc(build.__doc__ or "")) + markup.table(_HEADER, found)
