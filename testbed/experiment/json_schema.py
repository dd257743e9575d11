"""The JSON schema of an experiment file, for editors: `./lab schema` prints it.

The types, ranges and descriptions are those of the models that read the file. Added here is what
these models decide in code: which keys a name brings with it, what an arm's protocol has, and which
key paths a factor or a profile may replace. What needs the whole experiment (whether a link exists,
whether two impairments contradict each other) is left to `./lab plan`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from testbed.experiment import Experiment, choices, profiles
from testbed.experiment.arm import Filling
from testbed.experiment.choices import OWN, Choice, Model
from testbed.shared import docstrings
from testbed.shared.registry import Registry
from testbed.training.filling import FILLINGS
from testbed.training.models import MODELS
from testbed.training.optimisers import OPTIMISERS
from testbed.transport import protocols
from testbed.transport.congestion import CONGESTION_CONTROLS
from testbed.transport.order import ORDERS
from testbed.transport.repair import REPAIRS
from testbed.transport.tolerance import POLICIES, Fixed

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build() -> Schema:
    """The schema, as plain data."""
    definitions: Schema = {}
    top = plain(Experiment, definitions)
    for choice in choices.all_choices():
        name = choice.path.removesuffix("[]")
        definitions[name] = _choice(choice, definitions)
        owner, key = _owner(choice.path, top, definitions)
        reference: Schema = {"$ref": f"#/$defs/{name}"}
        if choice.path.endswith("[]"):
            reference = {"type": "array", "items": reference}
        kept = {each: owner[key][each] for each in ("description", "default") if each in owner[key]}
        owner[key] = {**reference, **kept}
    definitions |= {f"axis.{key}": _entry(registry) for key, registry in _AXES.items()}
    definitions |= {"axis.filling": _entry(FILLINGS), "axis.tolerance": _tolerance()}
    definitions["Arm"] = _arm(definitions["Arm"])
    definitions["Training"]["properties"]["model"] |= _name(MODELS)
    definitions["Training"]["properties"]["optimiser"] |= _name(OPTIMISERS)
    names = "|".join(map(re.escape, Experiment.model_fields))
    top["properties"]["factors"] |= _factors(names)
    top["properties"]["profiles"] |= _profiles()
    for key in ("arms", "profiles"):
        top["properties"][key]["additionalProperties"] = False
    used = _reachable(top, definitions)
    return {
        "$schema": DIALECT,
        "$id": "urn:bounded-loss-testbed:experiment",
        "title": "An experiment of the bounded-loss testbed",
        **{key: value for key, value in top.items() if key != "title"},
        "$defs": {name: definitions[name] for name in sorted(used)},
    }


def plain(model: Model, definitions: Schema) -> Schema:
    """A model's schema as pydantic has it, less titles; models inside go to `definitions`."""
    found = model.model_json_schema(ref_template="#/$defs/{model}")
    inside = found.pop("$defs", {})
    for name, each in _models_inside(model).items():
        if name in inside and name not in definitions:
            definitions[name] = {}  # it may contain itself
            definitions[name] = plain(each, definitions)
    for name, inner in inside.items():
        if name not in definitions:
            _tidy(inner)
            definitions[name] = inner
    _tidy(found)
    described = docstrings.arguments(model)
    for name, field in model.model_fields.items():
        schema = found["properties"][field.alias or name]
        if name in described:
            schema.setdefault("description", described[name])
        if field.default_factory is not None:
            schema["default"] = field.get_default(call_default_factory=True)
    return found


def _models_inside(model: Model) -> dict[str, Model]:
    """The models that a model's fields are made of, by the names that pydantic gives them."""
    found = {}
    for field in model.model_fields.values():
        for each in choices.members(field.annotation):
            if isinstance(each, type) and issubclass(each, BaseModel):
                found[each.__name__] = each
    return found


def _tidy(node: Any) -> None:
    """Drop pydantic's titles and its OpenAPI keyword, in place; docstrings become one line."""
    if isinstance(node, list):
        for each in node:
            _tidy(each)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("title"), str):
        del node["title"]
    node.pop("discriminator", None)
    if isinstance(node.get("description"), str):
        node["description"] = " ".join(node["description"].partition("\n\n")[0].split())
    for each in node.values():
        _tidy(each)


def _choice(choice: Choice, definitions: Schema) -> Schema:
    """A section whose name decides its keys: a chain of conditions, which editors explain best."""
    names = sorted(choice.models)
    name: Schema = {"enum": names} if choice.own is None else _name(names)
    name["description"] = "decides which further keys there are"
    rules: list[Schema] = []
    for each in names:
        definition = f"{choice.path.removesuffix('[]')}.{each}"
        definitions[definition] = _variant(choice, each, definitions)
        rules.append(_rule(choice.key, {"const": each}, {"$ref": f"#/$defs/{definition}"}))
        if each == choice.default:
            absent = {"type": "object", "not": {"required": [choice.key]}}
            rules.append({"if": absent, "then": {"$ref": f"#/$defs/{definition}"}})
    if choice.own is not None:
        definition = f"{choice.path}.own"
        own = plain(choice.own, definitions)
        own["properties"][choice.key] = {"description": "names code of your own"}
        if choice.own is choice.common or choice.path == "phases":
            own["additionalProperties"] = True  # its own file says which further keys it has
        definitions[definition] = own
        rules.append(
            _rule(choice.key, {"type": "string", "pattern": OWN}, {"$ref": f"#/$defs/{definition}"})
        )
    section: Schema = {"type": "object", "properties": {choice.key: name}, "allOf": rules}
    if choice.default is None:
        section["required"] = [choice.key]
    if choice.alone:
        return {"if": {"type": "string"}, "then": name, "else": section}
    return section


def _name(names: Iterable[str]) -> Schema:
    return {"anyOf": [{"enum": sorted(names)}, {"type": "string", "pattern": OWN}]}


def _variant(choice: Choice, name: str, definitions: Schema) -> Schema:
    found = plain(choice.models[name], definitions)
    known = {key: each for key, each in found["properties"][choice.key].items() if key == "default"}
    found["properties"][choice.key] = {
        "const": name,
        "description": choice.meaning(name),
        **known,
    }
    return found


def _rule(key: str, value: Schema, then: Schema) -> Schema:
    condition = {"type": "object", "properties": {key: value}, "required": [key]}
    return {"if": condition, "then": then}


def _owner(path: str, top: Schema, definitions: Schema) -> tuple[Schema, str]:
    """The properties that a section is one of, and its key there."""
    parent, _, key = path.removesuffix("[]").rpartition(".")
    if not parent:
        return top["properties"], key
    name = top["properties"][parent]["$ref"].rpartition("/")[2]
    return definitions[name]["properties"], key


def _entry(registry: Registry[Any]) -> Schema:
    """The texts that choose an entry of an axis, with its options; or a mapping of the same."""
    forms = [OWN.strip("^$")]
    for name in registry:
        keys = "|".join(options(registry, name))
        one = rf"({keys})=[^,=]+"
        forms.append(re.escape(name) + (f"(:{one}(,{one})*)?" if keys else ""))
    text = {"type": "string", "pattern": f"^({'|'.join(forms)})$"}
    return {"anyOf": [text, _mapping(registry, "name")]}


def _mapping(registry: Registry[Any], key: str) -> Schema:
    name = {**_name(registry), "description": f"which {registry.axis}; other keys are its options"}
    return {"type": "object", "required": [key], "properties": {key: name}}


def _tolerance() -> Schema:
    """The three forms of a tolerance policy: a number, a text, a mapping."""
    return {"anyOf": [_FRACTION, _entry(POLICIES), _mapping(POLICIES, "policy")]}


def options(registry: Registry[Any], name: str) -> dict[str, inspect.Parameter]:
    """The options of an entry of an axis."""
    return dict(inspect.signature(registry.entry(name)).parameters)


_AXES: dict[str, Registry[Any]] = {
    "repair": REPAIRS,
    "order": ORDERS,
    "congestion_control": CONGESTION_CONTROLS,
}


def setting(protocol: str, key: str) -> Schema:
    """The schema of one key of an arm, as this protocol understands it."""
    described = {"description": description(protocol, key)}
    if key == "congestion_control" and protocol == "tcp":
        return {"type": "string", "pattern": r"^\w+$", **described}
    if key in _AXES:
        return {"$ref": f"#/$defs/axis.{key}", **described}
    if key in ("gather", "broadcast"):
        return {"$ref": "#/$defs/axis.tolerance", **described}
    if key == "carrier":
        return {"enum": ["udp", "tcp"], **described}
    if key == "name":
        return {"type": "string", **described}
    if key.endswith("_s"):
        return {"type": "number", "exclusiveMinimum": 0, **described}
    if key == "must":
        return {"type": "string", **described}
    if key == "tensors":
        bounds = {"type": "object", "additionalProperties": _FRACTION}
        return {"anyOf": [{"type": "string"}, bounds], **described}
    if key in ("first", "last"):
        return {"anyOf": [_FRACTION, {"type": "null"}], **described}
    return {**_FRACTION, **described}


_FRACTION: Schema = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}


def description(protocol: str, key: str) -> str:
    """What a key of an arm means: from the protocol's own part, or from all protocols'."""
    shared = docstrings.arguments(protocols.ProtocolConfig)
    if key in shared:
        return shared[key]
    policy = docstrings.arguments(type(protocols.preset(protocol).gather))
    return policy.get(key) or docstrings.arguments(Fixed)[key]


def protocol_defaults(protocol: str) -> dict[str, Any]:
    """The keys of a protocol's arm with their defaults; texts for what is chosen by text."""
    build, own = protocols.PRESETS[protocol]
    parameters = inspect.signature(build).parameters
    shared = protocols.preset(protocol).describe()
    return {**{key: parameters[key].default for key in own}, **shared}


def _arm(found: Schema) -> Schema:
    filling = {"$ref": "#/$defs/axis.filling"}
    legs = {
        leg: {"anyOf": [filling, {"type": "null"}], "description": text}
        for leg, text in docstrings.arguments(Filling).items()
    }
    both = {"type": "object", "properties": legs, "additionalProperties": False}
    described = found["properties"]
    common: Schema = {"filling": {**described["filling"], "anyOf": [filling, both]}}
    common["filling"].pop("$ref", None)
    rules = []
    for name in protocols.PRESETS:
        named: Schema = {"const": name}
        if name == "tcp":  # tcp-cubic, tcp-bbr, ... are tcp with that congestion control
            named = {"type": "string", "pattern": r"^tcp(-\w+)?$"}
        keys = {key: setting(name, key) for key in protocols.settings(name)}
        then: Schema = {
            "properties": {"protocol": True, **common, **keys},
            "additionalProperties": False,
        }
        rules.append(_rule("protocol", named, then))
    protocol = {"anyOf": [{"enum": list(protocols.PRESETS)}, {"pattern": r"^tcp-\w+$"}]}
    return {
        "type": "object",
        "required": ["protocol"],
        "properties": {"protocol": {**described["protocol"], **protocol}, **common},
        "allOf": rules,
    }


def _factors(names: str) -> Schema:
    path = rf"^({names})(\.[^.]+)*$"
    label = {"type": ["string", "number"], "description": "names the level in tables and figures"}
    level = {
        "type": "object",
        "required": ["label"],
        "properties": {"label": label},
        "patternProperties": {path: True},
        "additionalProperties": False,
    }
    labelled = {"type": "array", "minItems": 1, "items": level}
    values = {"type": "array", "minItems": 1}
    return {"patternProperties": {path: values}, "additionalProperties": labelled}


def _profiles() -> Schema:
    names = [key for key in Experiment.model_fields if key not in profiles.FIXED]
    path = rf"^({'|'.join(names)})(\.[^.]+)*$"
    changes = {
        "type": ["object", "null"],
        "patternProperties": {path: True},
        "additionalProperties": False,
    }
    return {"patternProperties": {"^[a-z0-9][a-z0-9-]{0,63}$": changes}}


def _reachable(node: Any, definitions: Schema) -> set[str]:
    """The definitions that are needed."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        waiting += (
            each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        )
        name = each.get("$ref", "").rpartition("/")[2] if isinstance(each, dict) else ""
        if name and name not in found:
            found.add(name)
            waiting.append(definitions[name])
    return found


def properties(model: type[BaseModel]) -> Iterable[tuple[str, Schema]]:
    """The keys of a model with their schemas."""
    found: Schema = plain(model, {})["properties"]
    return found.items()
