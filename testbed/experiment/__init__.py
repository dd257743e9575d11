"""Experiments: the YAML files' schema, and their expansion into runs.

May import training, verdict, workload, transport, lab, controllers, topologies and shared. To add a
key: a field of a section in `schema`, with its bounds and description; it is part of a run's key.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.experiment.loading import load, resolved
    from testbed.experiment.profiles import REFERENCE_PROFILE
    from testbed.experiment.run import ORDER_RULE, Run, ordered
    from testbed.experiment.schema import Experiment, Limits, Transport
    from testbed.experiment.shipped import EXPERIMENTS, find, names, profile_names, summary

# Imported when first used: listing experiments must not wait for the schema and all that it knows.
_FILES = {
    **dict.fromkeys(("load", "resolved"), "loading"),
    **dict.fromkeys(("ORDER_RULE", "Run", "ordered"), "run"),
    **dict.fromkeys(("Experiment", "Limits", "Transport"), "schema"),
    **dict.fromkeys(("EXPERIMENTS", "find", "names", "profile_names", "summary"), "shipped"),
    "REFERENCE_PROFILE": "profiles",
}
__all__ = [
    "EXPERIMENTS",
    "ORDER_RULE",
    "REFERENCE_PROFILE",
    "Experiment",
    "Limits",
    "Run",
    "Transport",
    "find",
    "load",
    "names",
    "ordered",
    "profile_names",
    "resolved",
    "summary",
]


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
