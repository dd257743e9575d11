"""The kinds of workload: what `workload.kind` may name."""

from __future__ import annotations

from typing import Annotated

from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry
from testbed.shared.section import Section
from testbed.workload.settings import BuiltIn, Programs
from testbed.workload.torchrun import Torchrun

WORKLOADS: Registry[Section] = Registry(
    "workload", {"training": BuiltIn, "programs": Programs, "torchrun": Torchrun}, own=None
)
AnyWorkload = Annotated[
    BuiltIn | Programs | Torchrun, OneOf(WORKLOADS, key="kind", base=Section, default="training")
]
