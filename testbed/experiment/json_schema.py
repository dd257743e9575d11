"""The JSON schema of an experiment file, for editors: `./lab schema` prints it.

The models describe themselves; added here is what an arm's protocol has. Options of names, key
paths of factors and profiles, and what needs the whole experiment are left to `./lab plan`.
"""

from __future__ import annotations

from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from testbed.experiment import Experiment
from testbed.experiment.arm import Arm, Filling
from testbed.shared import docstrings, units
from testbed.shared.named_sections import Schema, name_schema, when
from testbed.training.fillings import FILLINGS
from testbed.training.models import BUILDERS
from testbed.training.settings import OPTIMISERS
from testbed.transport import presets
from testbed.transport.order import ORDERS
from testbed.transport.presets import REGISTRIES, ProtocolConfig
from testbed.transport.tolerance import Fixed
from testbed.workload.settings import ProgramsArm
from testbed.workload.torchrun import TorchrunArm

# The bounds of an arm's numbers without a unit: of a share that may be whole, of a count, others.
_WHOLE_SHARES = ("floor", "share", "at_most", "keep", "quantile", "wait")
_FROM_ONE = ("within_rounds", "warm_up", "patience")
_PROTOCOL: Schema = {"anyOf": [{"enum": list(presets.PRESETS)}, {"pattern": r"^tcp-\w+$"}]}


def build() -> Schema:
    whole = of(Experiment)
    definitions, keys = whole["$defs"], whole["properties"]
    for key, registry in {**REGISTRIES, "filling": FILLINGS}.items():
        mapping = {"type": "object", "anyOf": [{"required": [name]} for name in ("name", "policy")]}
        forms = [name_schema(registry), {"type": ["string", "number"]}, mapping]
        definitions[f"axis.{key}"] = {"anyOf": forms}
    arm, changes, of_script = of(Arm), of(ProgramsArm), of(TorchrunArm)
    definitions |= arm.pop("$defs")
    for leg in definitions["Filling"]["properties"].values():
        leg["anyOf"] = [{"$ref": "#/$defs/axis.filling"}, {"type": "null"}]
    definitions["Arm"] = _arm(arm["properties"])
    changes["additionalProperties"] = {**definitions["Program"], "required": []}
    definitions["ProgramsArm"] = {key: changes[key] for key in changes if key != "$defs"}
    of_script.pop("$defs", None)
    of_script["properties"]["protocol"].pop("anyOf")
    of_script["properties"]["protocol"] |= _PROTOCOL
    # Which keys its hook and its protocol have, `plan` says.
    settings = {key: True for name in presets.PRESETS for key in presets.settings(name)}
    of_script["properties"] = {**settings, **of_script["properties"]}
    definitions["TorchrunArm"] = of_script | {"additionalProperties": False}
    definitions.pop("AnyArm", None)
    definitions["Training"]["properties"]["model"] |= name_schema(BUILDERS)
    definitions["Training"]["properties"]["optimiser"] |= name_schema(OPTIMISERS)
    keys["arms"]["additionalProperties"] = False
    (name_form,) = keys["arms"]["patternProperties"]
    keys["arms"]["patternProperties"] = {name_form: True}
    keys["rounds"].pop("default", None)
    whole["required"] = [key for key in whole["required"] if key != "arms"]
    # The workload says which keys an arm has.
    rules = {
        kind: {"properties": {"arms": {"patternProperties": {name_form: {"$ref": reference}}}}}
        for kind in ("Arm", "TorchrunArm", "ProgramsArm")
        for reference in (f"#/$defs/{kind}",)
    }
    chosen: Schema = {**rules["Arm"], "required": ["rounds", "arms"]}
    for kind in ("torchrun", "programs"):
        named = when("workload", {"properties": {"kind": {"const": kind}}}, {})["if"]
        chosen = {"if": named, "then": rules[f"{kind.title()}Arm"], "else": chosen}
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": "urn:bounded-loss-testbed:experiment",
        "title": "An experiment of the bounded-loss testbed",
        **whole,
        **chosen,
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
        described = super().model_schema(schema)
        del described["title"]
        described["description"] = docstrings.first_paragraph(schema["cls"])
        above = getattr(schema["cls"], "unit_of", "")
        for key, of_key in described["properties"].items():
            if unit := units.of(key) or units.of(above):
                described["properties"][key] = _with_unit(of_key, unit)
        return described


def of(model: type[BaseModel]) -> Schema:
    return model.model_json_schema(schema_generator=_Described)


def _with_unit(schema: Schema, unit: units.Unit) -> Schema:
    """Return the same schema, where numbers may have a unit."""
    if schema.get("type") in ("number", "integer"):
        of_key = ("default", "description")
        about: Schema = {key: schema[key] for key in of_key if key in schema}
        plain = {key: value for key, value in schema.items() if key not in about}
        return {"anyOf": [plain, with_unit(unit)], **about}
    united = dict(schema)
    if isinstance(schema.get("items"), dict):
        united["items"] = _with_unit(schema["items"], unit)
    for key in {"anyOf", "oneOf"} & schema.keys():
        alternatives = [_with_unit(form, unit) for form in schema[key]]
        # An alternative that has become alternatives itself stands beside the others.
        united[key] = [
            form for alternative in alternatives for form in alternative.get("anyOf", [alternative])
        ]
    return united


def with_unit(unit: units.Unit) -> Schema:
    return {"type": "string", "pattern": units.pattern(unit)}


def _setting(protocol: str, key: str) -> Schema:
    preset, unit = presets.preset(protocol), units.of(key)
    order = ORDERS.entry(ORDERS.parse(preset.order)[0])
    parts = (Fixed, type(preset.gather), order, ProtocolConfig)  # a later one counts more
    if key == "congestion_control" and preset.carrier == "tcp":
        schema: Schema = {"type": "string", "pattern": r"^\w+$"}
    elif key in REGISTRIES:
        schema = {"$ref": f"#/$defs/axis.{key}"}
    elif unit is not None:
        schema = _with_unit({"type": "number", "exclusiveMinimum": 0}, unit)
    else:
        kinds = [get_type_hints(part.__init__) for part in parts]
        hints = {name: kind for of_part in kinds for name, kind in of_part.items()}
        schema = TypeAdapter(hints[key]).json_schema()
        for form in schema.get("anyOf", [schema]):
            if form.get("type") in ("number", "integer"):
                form |= _bounds(key)
    texts = {name: text for part in parts for name, text in docstrings.arguments(part).items()}
    return {**schema, "description": texts.get(key, "")}


def _bounds(key: str) -> Schema:
    """Return the bounds of an arm's number without a unit."""
    if key in _WHOLE_SHARES:
        return {"exclusiveMinimum": 0, "maximum": 1}
    return {"minimum": 1} if key in _FROM_ONE else {"minimum": 0, "exclusiveMaximum": 1}


def _defaults(protocol: str) -> dict[str, Any]:
    chosen = presets.preset(protocol)
    shared = chosen.describe()
    if chosen.carrier == "udp":
        shared |= {"control": chosen.control, "marks": chosen.marks}
    return {**presets.PRESETS[protocol].options, **shared}


def _arm(described: Schema) -> Schema:
    forms = [{"$ref": "#/$defs/axis.filling"}, {"$ref": f"#/$defs/{Filling.__name__}"}]
    filling = {key: value for key, value in described["filling"].items() if key != "$ref"}
    common: Schema = {
        "filling": {**filling, "anyOf": forms},
        "learning_rate": described["learning_rate"],
    }
    rules = []
    for name in presets.PRESETS:
        named: Schema = {"const": name}
        if name == "tcp":  # tcp-cubic, tcp-bbr, ... are tcp with that congestion control
            named = {"type": "string", "pattern": r"^tcp(-\w+)?$"}
        defaults = _defaults(name)
        keys = {
            key: {**_setting(name, key), **({"default": defaults[key]} if key in defaults else {})}
            for key in presets.settings(name)
        }
        section = {
            "description": presets.PRESETS[name].about,
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
