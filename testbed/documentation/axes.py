"""The reference of all named parts: the axes of a protocol, models, data sets, detectors, ...

Each is listed with the options that it takes, from the tables in which the code looks names up.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.documentation import keys, markup
from testbed.experiment import Experiment
from testbed.shared import docstrings
from testbed.shared.input_error import InputError
from testbed.shared.named_sections import OneOf, all_sections
from testbed.shared.registry import Registry
from testbed.training import models
from testbed.training.filling import FILLINGS
from testbed.training.models import MODELS, Entry
from testbed.training.optimisers import OPTIMISERS
from testbed.transport.policies.congestion import CONGESTION_CONTROLS
from testbed.transport.policies.marks import MARKS
from testbed.transport.policies.order import ORDERS
from testbed.transport.policies.repair import REPAIRS
from testbed.transport.policies.tolerance import POLICIES

# The axes of a protocol: the table of names, the key, an example.
AXES: dict[str, tuple[Registry[Any], str, str]] = {
    "Tolerances": (POLICIES, "arms.NAME.gather, broadcast", "phased:low=0.008,high=0.408"),
    "Repairs": (REPAIRS, "arms.NAME.repair", "streaming:residual=0.05"),
    "Chunk orders": (ORDERS, "arms.NAME.order", "rotating:share=0.5"),
    "Marks": (MARKS, "arms.NAME.marks", "layer-and-magnitude:back=0.5"),
    "Congestion controls": (CONGESTION_CONTROLS, "arms.NAME.congestion_control", "cubic:beta=0.8"),
    "Fillings": (FILLINGS, "arms.NAME.filling", "rescale:by=fraction"),
}
_SUPPLIED = {"rate_bps", "datagram_bytes"}
# Titles of the sections whose name decides their keys, by their paths.
_SECTIONS = {
    "training.dataset": "Data sets",
    "training.split": "Splits",
    "training.schedule": "Learning-rate schedules",
    "training.pace": "Paces",
    "workload": "Workloads",
    "phases": "Phase detectors",
    "topology": "Topologies",
    "impairments[]": "Impairments",
}


def reference() -> str:
    """A section for each table of names."""
    axes = [_axis(title, *given) for title, given in AXES.items()]
    sections = [_section(*each) for each in all_sections(Experiment)]
    return "\n".join([*axes, _models(), _optimisers(), *sections])


def option_rows(factory: Callable[..., Any]) -> list[tuple[str, str, str]]:
    """The options of an entry: name, default, meaning."""
    told = docstrings.arguments(factory)
    return [
        (markup.code(name), _default(name, each), markup.sentence(told.get(name, "")))
        for name, each in inspect.signature(factory).parameters.items()
    ]


def _default(name: str, parameter: inspect.Parameter) -> str:
    default = parameter.default
    if name in _SUPPLIED:
        return "from the lab"
    if default is inspect.Parameter.empty:
        return "required"
    if default is None:
        return "none"
    if isinstance(default, bool):
        return markup.code(str(default).lower())
    return markup.code('""' if default == "" else default)


def _axis(title: str, registry: Registry[Any], place: str, example: str) -> str:
    summary, rows = [], []
    entries = {name: registry.entry(name) for name in registry}
    files = Counter(map(inspect.getmodule, entries.values()))
    for name, factory in entries.items():
        file = inspect.getmodule(factory)
        described = file if files[file] == 1 else factory  # a file of its own describes its entry
        summary.append((markup.code(name), docstrings.first_sentence(described)))
        rows += [(markup.code(name), *row) for row in option_rows(factory)]
    return "\n".join(
        [
            f"## {title}\n",
            f"Key: `{place}`, for example `{example}`.\n",
            markup.table(("name", "what it does"), summary),
            markup.table(("name", "option", "default", "meaning"), rows) if rows else "",
        ]
    )


def _models() -> str:
    rows = []
    for name, entry in MODELS.items():
        weights = ""
        if entry.parameters and entry.published:
            classes, shape = entry.published
            inputs = " x ".join(map(str, shape))
            weights = f"{entry.parameters:,} for inputs of {inputs} and {classes:,} classes"
        rows.append((markup.code(name), entry.inputs, weights, _builder(entry)))
    header = ("name", "takes", "trained weights", "what it is")
    return f"## Models\n\nKey: `training.model`.\n\n{markup.table(header, rows)}"


def _builder(entry: Entry) -> str:
    """What a model is: from its source, since importing it takes torch, which may be left out."""
    (place,) = models.__path__
    source = Path(place, f"{entry.module}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == entry.function:
            return docstrings.sentence_of(ast.get_docstring(node))
    raise LookupError(f"{entry.module} has no {entry.function}")


def _optimisers() -> str:
    rows = []
    for name in OPTIMISERS:
        try:
            takes = inspect.signature(OPTIMISERS.entry(name)).parameters
        except InputError:
            rows.append((markup.code(name), "(torch is left out here)"))
            continue
        keys_taken = [markup.code(key) for key in ("momentum", "weight_decay") if key in takes]
        rows.append((markup.code(name), ", ".join(keys_taken)))
    header = ("name", "takes, beside the learning rate")
    return f"## Optimisers\n\nKey: `training.optimiser`.\n\n{markup.table(header, rows)}"


def _section(path: str, section: OneOf) -> str:
    rows = [(markup.code(name), section.meaning(name)) for name in section.registry]
    anchor = keys.anchor(keys.title(path, section, next(iter(section.registry))))
    text = f"Key: `{section.key}` in `{path}`. [Their options](experiment-yaml.md#{anchor})."
    return f"## {_SECTIONS[path]}\n\n{text}\n\n{markup.table(('name', 'what it is'), rows)}"
