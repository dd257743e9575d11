"""Experiments: the YAML schema, factors, profiles, and the expansion into runs in an order."""

from testbed.experiment.loading import EXPERIMENTS, find, load, names, profile_names
from testbed.experiment.profiles import DEFAULT_PROFILE, REFERENCE_PROFILE
from testbed.experiment.run import SCHEMA, Run
from testbed.experiment.run_order import ORDER_RULE, ordered
from testbed.experiment.schema import LAB_MTU_BYTES, Experiment, Limits, Transport

__all__ = [
    "DEFAULT_PROFILE",
    "EXPERIMENTS",
    "LAB_MTU_BYTES",
    "ORDER_RULE",
    "REFERENCE_PROFILE",
    "SCHEMA",
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
