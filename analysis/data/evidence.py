"""The evidence for numbers: runs, their verdicts and gates, their points in a sweep, their blocks.

Runs of one machine and one code are a block; those of two blocks are no pair. The code is
identified by its hash; in older runs, which have none, by the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

VERDICTS = ("ok", "failed", "invalid", "unsupported", "interrupted")
MISSING = "missing"  # planned, but nothing of it is on disk: not started yet
NOT_STARTED = "planned, not started"  # its reason, of a sweep that is not divided
FACTOR_PREFIX = "factor."  # of the columns that hold a run's point in the sweep


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run and what its directory holds; `config` and so on are its documents."""

    key: str  # the name of its directory
    arm: str
    seed: int
    factors: dict[str, Any]  # its point in the sweep
    verdict: str  # `missing` where nothing of it is on disk
    reason: str = ""  # why it is not ok
    directory: Path | None = None
    note: str = ""  # why this is not the plan's own finished directory
    began_at: str | None = None  # a time of day
    wall_s: float | None = None
    gates: list[dict[str, Any]] = field(default_factory=list, repr=False)  # of `status.json`
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    manifest: dict[str, Any] = field(default_factory=dict, repr=False)
    calibration: dict[str, Any] = field(default_factory=dict, repr=False)
    congestion_controls: list[str] = field(default_factory=list)  # read back by the endpoints
    problems: list[str] = field(default_factory=list)  # of its files; more as logs are read


REFERENCE = "dblp"  # ratios are written as the paper writes them: baseline / DBLP


def over_one(arms: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of all other arms with `dblp`, or else with the first."""
    reference = REFERENCE if REFERENCE in arms else next(iter(arms), "")
    return [(arm, reference) for arm in arms if arm != reference]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """An experiment's runs, and the metrics of the ok ones."""

    experiment: str
    description: str
    commands: list[str]
    arms: list[str]
    published_ids: list[str] | None
    compare: list[list[str]]
    levels: dict[str, list[str | None]]
    runs: list[Run]
    others: list[Run]

    @property
    def compared(self) -> list[tuple[str, str]]:
        """The pairs that the experiment names, of arms that are here; without any, `over_one`."""
        here = [(one, other) for one, other in self.compare if {one, other} <= {*self.arms}]
        return here or over_one(self.arms)

    def measured(self) -> pl.DataFrame:
        """One row per ok run: `run_key`, `arm`, `seed`, the factors, and a column per metric."""
        raise NotImplementedError

    def per_run(self) -> pl.DataFrame:
        """The rows of `measured`, each with the columns `BLOCK` of its run's manifest."""
        rows = self.measured()
        blocks = {
            run.key: (one_machine(run.manifest), *code_of(run.manifest)) for run in self.ok_runs
        }
        return rows.with_columns(
            pl.Series(name, [blocks[key][at] for key in rows["run_key"]], dtype=pl.String)
            for at, name in enumerate(BLOCK)
        )

    @property
    def left_out(self) -> list[Run]:
        """The ok runs on disk that no table has; the note of each says why."""
        return [run for run in self.others if run.verdict == "ok"]

    @property
    def ok_runs(self) -> list[Run]:
        return [run for run in self.runs if run.verdict == "ok"]

    @property
    def runs_programs(self) -> bool:
        return any(runs_programs(run.config) for run in self.runs)

    @property
    def factor_columns(self) -> list[str]:
        return [FACTOR_PREFIX + name for name in factor_names(self.ok_runs)]

    def point_order(self, run: Run) -> tuple[int, ...]:
        """A sort key: runs are executed in an order of their own, tables follow the experiment."""
        places = []
        for name, value in run.factors.items():
            levels, level = self.levels.get(name) or [], factor_text(value)
            places.append(levels.index(level) if level in levels else len(levels))
        return tuple(places)

    def congestion_controls(self, arm: str) -> list[str]:
        of_runs = [run.congestion_controls for run in self.ok_runs if run.arm == arm]
        return sorted(set[str]().union(*of_runs))

    def verdicts(self) -> dict[str, int]:
        ended = [run.verdict for run in self.runs]
        return {verdict: ended.count(verdict) for verdict in (*VERDICTS, MISSING)}


def runs_programs(config: Mapping[str, Any]) -> bool:
    return isinstance(config.get("workload"), dict)


def is_of_script(config: Mapping[str, Any]) -> bool:
    """Tell runs of a lab in Python: no command can repeat them, and they trained nothing."""
    return "adjustable" in config


def section(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def dataset_name(training: dict[str, Any]) -> Any:
    """The name of the data set in a `training` section, whose options may stand beside it."""
    dataset = training.get("dataset")
    return dataset.get("name") if isinstance(dataset, dict) else dataset


def task(config: dict[str, Any]) -> str:
    training = section(config, "training")
    return f"{training.get('model')} on {dataset_name(training)}"


PACES = ("real", "paced", "payload-only")


def pace(config: dict[str, Any]) -> dict[str, Any]:
    """The pace of a run's iterations: `kind` is `real`, `paced` or `payload-only`."""
    settings = {"kind": "real"} | section(section(config, "training"), "pace")
    if settings["kind"] not in PACES:
        raise ValueError(f"training.pace.kind: {settings['kind']!r}; valid: {', '.join(PACES)}")
    return settings


def factor_names(runs: Sequence[Run]) -> list[str]:
    return sorted({name for run in runs for name in run.factors})


def factor_text(value: Any) -> str | None:
    """A factor's value as it stands in the factor columns; a bundle of settings by its label."""
    if isinstance(value, dict) and "label" in value:
        value = value["label"]
    return None if value is None else str(value)


def impairment_kinds(config: Mapping[str, Any]) -> dict[str, str]:
    kinds = {}
    for impairment in config.get("impairments") or []:
        kind = impairment["kind"]
        kinds[impairment.get("name") or f"{kind}-{impairment.get('host')}"] = kind_name(kind)
    return kinds


def kind_name(kind: str) -> str:
    """A kind of impairment without the place of a user's own code: `/a/mine.py:Flap` is `Flap`."""
    place, _, name = kind.rpartition(":")
    return name if place else Path(kind).stem


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
    return ", ".join(str(word) for word in words if word is not None)


def one_machine(manifest: Mapping[str, Any]) -> str:
    """As `machine_text`, but no two machines have the same, even if they are alike."""
    identifier = manifest.get("machine_id")
    return machine_text(manifest) + (f", machine {identifier}" if identifier else "")


def code_of(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """The hash of the lab's code; of an older run an empty one, and the commit."""
    sha256 = str(manifest.get("code_sha256") or "")
    return sha256, "" if sha256 else str(manifest.get("commit") or "")


PASSED, FAILED, NOT_MEASURED = "passed", "failed", "not measured"  # outcomes of gates


def calls_attention(gate: dict[str, Any]) -> bool:
    """Tell a gate that failed or was not measured, also where it does not decide."""
    return gate["outcome"] in (FAILED, NOT_MEASURED)


def stops(gate: dict[str, Any]) -> bool:
    """Tell a gate because of which the run does not count."""
    return calls_attention(gate) and gate.get("decides") is not False


def waived(runs: Iterable[Run], *, beyond: bool = False) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for run in runs:
        for gate in run.gates:
            if (words := gate.get("waived")) and (calls_attention(gate) or not beyond):
                keys.setdefault(str(words), []).append(run.key)
    return keys
