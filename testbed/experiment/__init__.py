"""Experiments: the YAML files' schema, and their expansion into runs.

`schema` holds the keys; `loading` reads a file; `factors` and `profiles` vary it; `run` is one
resolved run. `taken_phases` finds runs whose phases others take. `dimensionless` and `durations`
predict. May import training, transport, lab,
controllers, topologies and shared. To add a key: a field of a section in `schema`, with its bounds;
whatever is in a run's configuration is part of the run's key.
"""

from testbed.experiment.loading import EXPERIMENTS, find, load, names, profile_names
from testbed.experiment.profiles import REFERENCE_PROFILE
from testbed.experiment.run import ORDER_RULE, Run, ordered
from testbed.experiment.schema import Experiment, Limits, Transport

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
]
