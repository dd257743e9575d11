"""Says where a run was measured: on which machine, and with which code of the lab.

Runs of one machine and one code are a block. Runs of two blocks differ in more than their arms,
so they are no pair. The code is known by its hash; of older runs, which have none, by the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from analysis.data.evidence import Run

BLOCK = ("machine", "code", "commit")  # the columns of `per_run` that say a run's block
_OF_MACHINE = ("cpu", "cpus", "memory_bytes", "machine", "kernel", "distribution")
# Of a manifest: what says where a run was measured, and with which code.
IDENTITY = ("commit", "sources", "code_sha256", *_OF_MACHINE, "machine_id")
_GIB = 1 << 30  # memory is rounded: what a kernel keeps for itself differs a little on one machine


def machine_text(manifest: Mapping[str, Any]) -> str:
    """A machine in words: what must agree for its times to be comparable."""
    words = []
    for name in _OF_MACHINE:
        value = manifest.get(name)
        if name == "memory_bytes" and isinstance(value, int | float):
            value = f"{round(value / _GIB)} GiB"
        elif name == "cpus" and value is not None:
            value = f"{value} CPUs"
        elif isinstance(value, dict):
            value = " ".join(map(str, value.values()))
        words.append(value)
    return ", ".join(str(each) for each in words if each is not None)


def one_machine(manifest: Mapping[str, Any]) -> str:
    """As `machine_text`, but no two machines have the same, even if they are alike."""
    found = manifest.get("machine_id")
    return machine_text(manifest) + (f", machine {found}" if found else "")


def code_of(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """The hash of the lab's code; of an older run an empty one, and the commit."""
    sha256 = str(manifest.get("code_sha256") or "")
    return sha256, "" if sha256 else str(manifest.get("commit") or "")


def with_blocks(rows: pl.DataFrame, runs: Sequence[Run]) -> pl.DataFrame:
    """The rows of some runs, each with the columns `BLOCK` of its run's manifest."""
    found = {run.key: (one_machine(run.manifest), *code_of(run.manifest)) for run in runs}
    return rows.with_columns(
        pl.Series(name, [found[key][at] for key in rows["run_key"]], dtype=pl.String)
        for at, name in enumerate(BLOCK)
    )
