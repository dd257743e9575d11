"""Experiments: the YAML files' schema, and their expansion into runs.

May import training, verdict, workload, transport, lab, controllers, topologies and shared. To add a
key: a field of a section in `schema`, with its bounds and description; it is part of a run's key.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.experiment.files import EXPERIMENTS, find, names, profile_names, summary
    from testbed.experiment.loading import load, resolved
    from testbed.experiment.run import Run, ordered
    from testbed.experiment.schema import Experiment, Limits

_FILES = {
    "files": ("EXPERIMENTS", "find", "names", "profile_names", "summary"),
    "loading": ("load", "resolved"),
    "run": ("Run", "ordered"),
    "schema": ("Experiment", "Limits"),
}
__all__ = ["EXPERIMENTS", "Experiment", "Limits", "Run", "find", "load", "names", "ordered"]
__all__ += ["profile_names", "resolved", "summary"]


def __getattr__(name: str) -> Any:
    """Imported when first used: listing experiments must not wait for the schema."""
    for file, names_in_it in _FILES.items():
        if name in names_in_it:
            return getattr(importlib.import_module(f"{__name__}.{file}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
