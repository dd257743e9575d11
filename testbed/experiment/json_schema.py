"""The JSON schema of an experiment file, for editors: `./lab schema` prints it.

The models that read the file describe themselves, with the keys that a name brings with it. Added
here is what the models decide in code: what an arm's protocol has, and which key paths a factor or
a profile may replace. What needs the whole experiment (whether a link exists, whether two
impairments contradict each other) is left to `./lab plan`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from testbed.experiment import Experiment, profiles
from testbed.experiment.arm import Arm, Filling
from testbed.shared import docstrings, own_code, units
from testbed.shared.named_sections import Schema, name_schema, when
from testbed.shared.registry import Registry
from testbed.training.filling import FILLINGS
from testbed.training.models import BUILDERS
from testbed.training.optimisers import OPTIMISERS
from testbed.transport import protocols
from testbed.transport.policies.order import ORDERS
from testbed.transport.policies.tolerance import POLICIES, Fixed
from testbed.transport.protocols import REGISTRIES, ProtocolConfig
from testbed.workload.settings import ProgramsArm
from testbed.workload.torchrun import TorchrunArm

_AXES: dict[str, Registry[Any]] = {**REGISTRIES, "filling": FILLINGS}
_FRACTION: Schema = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_FRACTION_OR_NONE: Schema = {"anyOf": [_FRACTION, {"type": "null"}]}
_SHARE: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
# What an arm's settings are that are no share, no name of an axis, and have no unit.
_SETTINGS: dict[str, Schema] = {
    "carrier": {"enum": ["udp", "tcp"]},
    "control": {"enum": ["tcp", "hedged"]},
    "coding": {"enum": ["plain", "two-values"]},
    "per": {"enum": ["payload", "tensor"]},
    "tensors": {"type": ["string", "object"], "additionalProperties": _FRACTION},
    "patience": {"type": "number", "minimum": 1},
    **dict.fromkeys(("name", "must"), _TEXT),
    **dict.fromkeys(("floor", "share", "at_most", "keep", "quantile", "wait"), _SHARE),
    **dict.fromkeys(("within_rounds", "warm_up", "epoch_rounds"), _COUNT),
    **dict.fromkeys(("first", "last"), _FRACTION_OR_NONE),
}
_PROTOCOL: Schema = {"anyOf": [{"enum": list(protocols.PRESETS)}, {"pattern": r"^tcp-\w+$"}]}


def build() -> Schema:
    """The schema, as plain data."""
    found = of(Experiment)
    definitions, keys = found["$defs"], found["properties"]
    definitions |= {f"axis.{key}": _axis(registry) for key, registry in _AXES.items()}
    arm, changes = of(Arm), of(ProgramsArm)
    definitions |= arm.pop("$defs")
    for leg in definitions["Filling"]["properties"].values():
        leg["anyOf"] = [{"$ref": "#/$defs/axis.filling"}, {"type": "null"}]
    definitions["Arm"] = _arm(arm["properties"])
    of_program = {**definitions["Program"], "required": []}
    definitions["ProgramsArm"] = {
        "type": "object",
        "properties": changes["properties"],
        "additionalProperties": of_program,
    }
    definitions["TorchrunArm"] = _torchrun_arm(of(TorchrunArm)["properties"])
    definitions.pop("AnyArm", None)
    definitions["Training"]["properties"]["model"] |= name_schema(BUILDERS)
    definitions["Training"]["properties"]["optimiser"] |= name_schema(OPTIMISERS)
    keys["factors"] |= _factors()
    keys["profiles"] |= _profiles()
    keys["arms"]["additionalProperties"] = False
    (form,) = keys["arms"]["patternProperties"]
    described = keys["arms"]["description"]

    def rule(arm: str, needed: list[str]) -> Schema:
        arms = {form: {"$ref": f"#/$defs/{arm}"}}
        found: Schema = {"description": described, "patternProperties": arms}
        return {"properties": {"arms": found}, "required": needed}

    keys["arms"]["patternProperties"] = {form: True}
    keys["rounds"].pop("default", None)
    found["required"] = [each for each in found["required"] if each != "arms"]
    chosen: Schema = rule("Arm", ["rounds", "arms"])
    for kind, arm_of_kind in (("torchrun", "TorchrunArm"), ("programs", "ProgramsArm")):
        named = when("workload", {"properties": {"kind": {"const": kind}}}, {})["if"]
        chosen = {"if": named, "then": rule(arm_of_kind, []), "else": chosen}
    found |= chosen
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": "urn:bounded-loss-testbed:experiment",
        "title": "An experiment of the bounded-loss testbed",
        **found,
    }


class _Described(GenerateJsonSchema):
    """Pydantic's generator, with descriptions from docstrings and without titles."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        if "default_factory" in schema:
            return schema["default_factory"]()  # type: ignore[call-arg]
        return super().get_default_value(schema)

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        found = super().model_schema(schema)
        del found["title"]
        found["description"] = docstrings.first_paragraph(schema["cls"])
        above = getattr(schema["cls"], "unit_of", "")
        for key, each in found["properties"].items():
            if unit := units.of(key) or units.of(above):
                found["properties"][key] = _with_unit(each, unit)
        return found


def of(model: type[BaseModel]) -> Schema:
    """A model's schema."""
    return model.model_json_schema(schema_generator=_Described)


def _with_unit(schema: Schema, unit: units.Unit) -> Schema:
    """The same schema, where numbers may have a unit."""
    if schema.get("type") in ("number", "integer"):
        of_key = ("default", "description")
        about: Schema = {key: schema[key] for key in of_key if key in schema}
        plain = {key: each for key, each in schema.items() if key not in about}
        return {"anyOf": [plain, with_unit(unit)], **about}
    found = dict(schema)
    if isinstance(schema.get("items"), dict):
        found["items"] = _with_unit(schema["items"], unit)
    for key in {"anyOf", "oneOf"} & schema.keys():
        alternatives = [_with_unit(each, unit) for each in schema[key]]
        # An alternative that has become alternatives itself stands beside the others.
        found[key] = [form for each in alternatives for form in each.get("anyOf", [each])]
    return found


def with_unit(unit: units.Unit) -> Schema:
    """The schema of a number with a unit."""
    return {"type": "string", "pattern": units.pattern(unit)}


def _axis(registry: Registry[Any]) -> Schema:
    """The texts that choose an entry of an axis, with its options; or a mapping of the same."""
    forms = [own_code.PATTERN.strip("^$")]
    for name in registry:
        keys = "|".join(inspect.signature(registry.entry(name)).parameters)
        one = rf"({keys})=[^,=]+"
        forms.append(re.escape(name) + (f"(:{one}(,{one})*)?" if keys else ""))
    found: list[Schema] = [{"type": "string", "pattern": f"^({'|'.join(forms)})$"}]
    meaning = f"which {registry.axis}; other keys are its options"
    named = {**name_schema(registry), "description": meaning}
    for key in ("name", "policy") if registry is POLICIES else ("name",):
        found.append({"type": "object", "required": [key], "properties": {key: named}})
    return {"anyOf": [_FRACTION, *found] if registry is POLICIES else found}


def _setting(protocol: str, key: str) -> Schema:
    """The schema of one key of an arm, as this protocol understands it."""
    preset, unit = protocols.preset(protocol), units.of(key)
    schema = _SETTINGS.get(key, _FRACTION)
    if key == "congestion_control" and preset.carrier == "tcp":
        schema = {"type": "string", "pattern": r"^\w+$"}
    elif key in REGISTRIES:
        schema = {"$ref": f"#/$defs/axis.{key}"}
    elif unit is not None:
        schema = _with_unit({"type": "number", "exclusiveMinimum": 0}, unit)
    elif key == "patience" and protocol == "ltp":
        schema = {"anyOf": [schema, {"type": "null"}]}
    order = ORDERS.entry(ORDERS.parse(preset.order)[0])
    parts = (Fixed, type(preset.gather), order, ProtocolConfig)  # a later one counts more
    texts = {name: text for part in parts for name, text in docstrings.arguments(part).items()}
    return {**schema, "description": texts.get(key, "")}


def _defaults(protocol: str) -> dict[str, Any]:
    """The keys of a protocol's arm with their defaults; texts for what is chosen by text."""
    own = protocols.parameters(protocol)
    parameters = inspect.signature(protocols.PRESETS[protocol]).parameters
    chosen = protocols.preset(protocol)
    shared = chosen.describe()
    if chosen.carrier == "udp":
        shared |= {"control": chosen.control, "marks": chosen.marks}
    return {**{key: parameters[key].default for key in own}, **shared}


def _arm(described: Schema) -> Schema:
    forms = [{"$ref": "#/$defs/axis.filling"}, {"$ref": f"#/$defs/{Filling.__name__}"}]
    filling = {key: each for key, each in described["filling"].items() if key != "$ref"}
    common: Schema = {
        "filling": {**filling, "anyOf": forms},
        "learning_rate": described["learning_rate"],
    }
    rules = []
    for name in protocols.PRESETS:
        named: Schema = {"const": name}
        if name == "tcp":  # tcp-cubic, tcp-bbr, ... are tcp with that congestion control
            named = {"type": "string", "pattern": r"^tcp(-\w+)?$"}
        defaults = _defaults(name)
        keys = {
            key: {**_setting(name, key), **({"default": defaults[key]} if key in defaults else {})}
            for key in protocols.settings(name)
        }
        section = {
            "description": docstrings.first_paragraph(protocols.PRESETS[name]),
            "properties": {"protocol": True, **common, **keys},
            "additionalProperties": False,
        }
        rules.append(when("protocol", named, section))
    return {
        "type": "object",
        "required": ["protocol"],
        "properties": {"protocol": {**described["protocol"], **_PROTOCOL}, **common},
        "allOf": rules,
    }


def _torchrun_arm(described: Schema) -> Schema:
    """An arm of a training script; which keys its hook and its protocol have, `plan` says."""
    known = {key: True for name in protocols.PRESETS for key in protocols.settings(name)}
    text = {key: each for key, each in described["protocol"].items() if key != "anyOf"}
    described = described | {"protocol": {**text, **_PROTOCOL}}
    return {
        "type": "object",
        "properties": {**known, **described},
        "additionalProperties": False,
    }


def _key_paths(keys: Iterable[str], values: Schema | bool, **others: Any) -> Schema:
    """The schema of a mapping whose keys are key paths of an experiment."""
    path = rf"^({'|'.join(keys)})(\.[^.]+)*$"
    return {"patternProperties": {path: values}, "additionalProperties": False, **others}


def _factors() -> Schema:
    keys = Experiment.model_fields
    label = {"type": ["string", "number"], "description": "names the level in tables and figures"}
    properties = {"label": label}
    level = _key_paths(keys, True, type="object", required=["label"], properties=properties)
    labelled = {"type": "array", "minItems": 1, "items": level}
    return _key_paths(keys, {"type": "array", "minItems": 1}, additionalProperties=labelled)


def _profiles() -> Schema:
    keys = [key for key in Experiment.model_fields if key not in profiles.FIXED]
    patterns = {"^[a-z0-9][a-z0-9-]{0,63}$": _key_paths(keys, True, type=["object", "null"])}
    return {"patternProperties": patterns, "additionalProperties": False}
