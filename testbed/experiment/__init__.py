"""Experiments: the YAML files' schema, and their expansion into runs.

`schema` holds the keys; `shipped` finds a file, `loading` reads it; `factors` and `profiles` vary
it; `run` is one resolved run. `taken_phases` finds runs whose phases others take. `dimensionless`
and `durations` predict. May import training, verdict, workload, transport, lab, controllers,
topologies and shared. To add a key: a field of a section in `schema`, with its bounds;
whatever is in a run's configuration is part of the run's key.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.experiment.common_sections import Transport
    from testbed.experiment.loading import load, resolved
    from testbed.experiment.profiles import REFERENCE_PROFILE
    from testbed.experiment.run import ORDER_RULE, Run, ordered
    from testbed.experiment.schema import Experiment, Limits
    from testbed.experiment.shipped import EXPERIMENTS, find, names, profile_names, summary

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
# Imported when first used: listing experiments must not wait for the schema and all that it knows.
_FILES = {
    "common_sections": ("Transport",),
    "loading": ("load", "resolved"),
    "profiles": ("REFERENCE_PROFILE",),
    "run": ("ORDER_RULE", "Run", "ordered"),
    "schema": ("Experiment", "Limits"),
    "shipped": ("EXPERIMENTS", "find", "names", "profile_names", "summary"),
}


def __getattr__(name: str) -> Any:
    for file, contained in _FILES.items():
        if name in contained:
            return getattr(importlib.import_module(f"{__name__}.{file}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
