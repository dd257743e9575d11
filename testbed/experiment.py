"""The YAML schema of an experiment, and its expansion into runs.

Every key is typed and bounded here; an unknown key is an error. What a run finally uses is written
into its `config.json`, and the hash of that is its key.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

import topologies
from controllers import plan
from controllers.framework_choice import Framework
from controllers.impairments import AnyImpairment
from testbed import yaml_input
from testbed.arm import Arm
from testbed.training import phases, preparation
from testbed.training.parameters import Training
from testbed.training.phases import AnyPhases
from testbed.transport import path_mtu, protocols
from testbed.yaml_input import InputError, Section

SCHEMA = 1
LAB_MTU_BYTES = 1500
EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"


class Transport(Section):
    """What all arms share."""

    chunk_bytes: int = Field(default=1456, ge=4, multiple_of=4)
    pace: float = Field(default=0.97, gt=0, le=1.5, description="share of the link's rate")
    peer_timeout_s: float = Field(default=30.0, gt=0)

    @field_validator("chunk_bytes")
    @classmethod
    def _fits_a_frame(cls, chunk_bytes: int) -> int:
        largest = path_mtu.largest_chunk_bytes(LAB_MTU_BYTES)
        if chunk_bytes > largest:
            raise ValueError(
                f"the lab's links carry packets of {LAB_MTU_BYTES} bytes, headers included; "
                f"valid: multiples of 4 up to {largest}"
            )
        return chunk_bytes


class Limits(Section):
    """Gates: beyond them the emulator, not the protocol, decided, and the run is invalid."""

    rate_error: float = Field(default=0.03, gt=0, description="calibrated against configured rate")
    rtt_error: float = Field(default=0.1, gt=0, description="share of the configured round trip")
    rtt_error_s: float = Field(default=0.0003, gt=0, description="allowed where it is more")
    idle_loss: float = Field(default=0.0, ge=0, le=1, description="share of the idle probes")
    queue_error: float = Field(
        default=0.0, ge=0, description="share of a queue's limit, beyond what can be resolved"
    )
    conservation: float = Field(
        default=0.001, gt=0, le=1, description="share of a link's packets that nothing explains"
    )
    cpu_wait: float = Field(
        default=0.3,
        gt=0,
        description="share of the training time that a thread of the emulator was ready to run "
        "and did not run",
    )
    cpu_others: float = Field(
        default=0.25,
        gt=0,
        description="share of the machine's processor time that processes outside the lab used "
        "while something waited for a processor",
    )
    impairment_late_s: float = Field(default=0.010, gt=0, description="p99 over begins and ends")
    clock_stall_s: float = Field(default=0.1, gt=0, description="longest time that nothing ran")
    clock_drift: float = Field(default=0.0005, gt=0, description="CLOCK_MONOTONIC against its raw")
    run_timeout_s: float = Field(default=900.0, gt=0)


def _topology(given: Any, info: ValidationInfo) -> topologies.TopologyParameters:
    """Its file may lie beside the experiment's, or where the command was given."""
    return topologies.parse(given, folders=[*(info.context or {}).get("folders", ()), Path.cwd()])


class Experiment(Section):
    """One YAML file of `experiments/`."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    description: str = ""
    rounds: int = Field(ge=1, le=1_000_000)
    seeds: list[int] = Field(min_length=1)
    topology: Annotated[SerializeAsAny[topologies.TopologyParameters], PlainValidator(_topology)]
    training: Training = Training()
    transport: Transport = Transport()
    phases: AnyPhases = phases.DEFAULT
    arms: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$")], Arm] = Field(
        min_length=1
    )
    impairments: list[AnyImpairment] = Field(default_factory=list)
    factors: dict[str, list[Any]] = Field(default_factory=dict)
    limits: Limits = Limits()
    controller: Framework = Field(default="ryu", description="the SDN framework")

    @field_validator("seeds")
    @classmethod
    def _seeds_are_distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) != len(seeds) or any(seed < 0 for seed in seeds):
            raise ValueError("must be distinct numbers, 0 or more")
        return seeds

    @model_validator(mode="after")
    def _impairments_fit(self) -> Experiment:
        for seed in self.seeds:
            self.resolved_impairments(seed)
        return self

    @model_validator(mode="after")
    def _training_fits(self) -> Experiment:
        preparation.check(self.training_need(self.seeds[0]))
        return self

    def training_need(self, seed: int) -> preparation.Need:
        """What a run with this seed trains."""
        return preparation.Need(
            model=self.training.model,
            dataset=self.training.dataset,
            split=self.training.split,
            batch_size=self.training.batch_size,
            workers=len(self.topology.host_names()) - 1,  # the other one is the server
            seed=seed,
            folder=None,
        )

    def resolved_impairments(self, seed: int) -> list[dict[str, Any]]:
        """The timeline of a run with this seed, periods and random draws as lists.

        Raises:
            ValueError: an entry does not fit the network, the rounds, or another entry.
        """
        if not self.impairments:
            return []
        network = topologies.build(self.topology)
        places = plan.Places(
            hosts=self.topology.all_host_names(),
            switches=network.switches(),
            links=network.links(),
            training_hosts=self.topology.host_names(),
        )
        return plan.resolve(self.impairments, places, rounds=self.rounds, seed=seed)


class Run(BaseModel):
    """One arm, one point of the factors, one seed."""

    model_config = ConfigDict(frozen=True)

    experiment: Experiment
    arm: str
    seed: int
    factors: dict[str, Any]
    folder: Path | None = None

    @property
    def training_need(self) -> preparation.Need:
        """What it trains, and where a user's own files are looked for."""
        return self.experiment.training_need(self.seed)._replace(folder=self.folder)

    @property
    def label(self) -> str:
        """The run in words, for progress displays."""
        factors = "".join(f", {key.split('.')[-1]} {value}" for key, value in self.factors.items())
        return f"{self.arm}, seed {self.seed}{factors}"

    @property
    def protocol(self) -> protocols.ProtocolConfig:
        """The arm's transport configuration."""
        return self.experiment.arms[self.arm].resolved()

    def config(self) -> dict[str, Any]:
        """The fully resolved configuration, as written to `config.json`."""
        document = self._identity()
        # The same experiment in another folder is the same run, so the key leaves the folder out.
        folder = None if self.folder is None else str(self.folder)
        return {"schema": SCHEMA, "key": self.key, "folder": folder, **document}

    @property
    def key(self) -> str:
        """The hash of the resolved configuration, with the arm and seed in front for humans."""
        text = json.dumps(self._identity(), sort_keys=True, separators=(",", ":"))
        return f"{self.arm}-s{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def _identity(self) -> dict[str, Any]:
        shared = self.experiment.model_dump(
            mode="json", exclude={"name", "description", "seeds", "arms", "factors"}
        )
        return {
            "experiment": self.experiment.name,
            "arm": self.arm,
            "seed": self.seed,
            "factors": self.factors,
            "protocol": self.protocol.describe(),
            "filling": self.experiment.arms[self.arm].resolved_filling(),
            **shared,
            "impairments": self.experiment.resolved_impairments(self.seed),
        }


def load(
    name_or_path: str,
    *,
    overrides: Sequence[str] = (),
    arms: Sequence[str] = (),
    seeds: int | None = None,
    congestion_control: str | None = None,
) -> list[Run]:
    """Read an experiment and expand it into runs, arms interleaved within each seed.

    Args:
        name_or_path: a name in `experiments/`, or the path of a YAML file.
        overrides: `key.path=value` texts that replace values of the file.
        arms: keep only these.
        seeds: use this many seeds, starting with the file's own.
        congestion_control: replaces every arm's.

    Raises:
        InputError: one line that names the file, the key, the value and what would be valid.
    """
    path = find(name_or_path)
    document = yaml_input.read(path)
    for text in overrides:
        yaml_input.override(document, text)
    if congestion_control is not None:
        for arm in document.get("arms", {}).values():
            arm["congestion_control"] = congestion_control
    points = list(_points(document.get("factors") or {}, path))
    experiments = [(point, _validated(document, point, path)) for point in points]
    first = experiments[0][1]
    wanted_arms = list(arms) or list(first.arms)
    for arm in wanted_arms:
        if arm not in first.arms:
            raise InputError(f"{path}: unknown arm {arm!r}; valid: {', '.join(first.arms)}")
    wanted_seeds = _extend(first.seeds, seeds)
    return [
        Run(
            experiment=experiment,
            arm=arm,
            seed=seed,
            factors=point,
            folder=path.resolve().parent,
        )
        for seed in wanted_seeds
        for point, experiment in experiments
        for arm in wanted_arms
    ]


def find(name_or_path: str) -> Path:
    """The YAML file of an experiment's name or path.

    Raises:
        InputError: there is none; the message lists the names that exist.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        return path
    found = EXPERIMENTS / f"{name_or_path}.yaml"
    if "/" in name_or_path or not found.is_file():
        raise InputError(
            f"unknown experiment {name_or_path!r}; valid: {', '.join(names())}, FILE.yaml"
        )
    return found


def names() -> list[str]:
    """The experiments that come with the project."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


def _extend(seeds: Sequence[int], count: int | None) -> list[int]:
    if count is None:
        return list(seeds)
    further = (seed for seed in itertools.count(1) if seed not in seeds)
    return list(itertools.islice(itertools.chain(seeds, further), count))


def _points(factors: Any, path: Path) -> Iterator[dict[str, Any]]:
    if not isinstance(factors, Mapping) or not all(
        isinstance(values, list) and values for values in factors.values()
    ):
        raise InputError(f"{path}: factors: must map a key path to a list of values")
    for values in itertools.product(*factors.values()):
        yield dict(zip(factors, values, strict=True))


def _validated(document: dict[str, Any], point: Mapping[str, Any], path: Path) -> Experiment:
    resolved = json.loads(json.dumps(document))  # a deep copy of plain data
    for key, value in point.items():
        yaml_input.replace(resolved, key, value)
    try:
        return Experiment.model_validate(resolved, context={"folders": [path.parent]})
    except ValidationError as error:
        raise InputError(f"{path}: {yaml_input.explain(error, Experiment)}") from None
