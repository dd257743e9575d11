"""The YAML schema of an experiment: every key is typed and bounded, an unknown key is an error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_serializer,
    model_validator,
)

import topologies
from controllers import impairment_plan
from controllers.impairments import AnyImpairment
from testbed.experiment.arm import Arm
from testbed.lab.datapath import Choice
from testbed.shared import own_code, problems
from testbed.shared.input_error import InputError
from testbed.shared.problems import Problem, Section, form, optional
from testbed.shared.registry import one_of
from testbed.training import phases
from testbed.training.datasets import DATASETS
from testbed.training.phases import AnyPhases
from testbed.training.settings import Training
from testbed.transport.net.addresses import largest_chunk_bytes
from testbed.transport.pacing import LONGEST_QUANTUM_S, QUANTUM_S
from testbed.transport.presets import REGISTRIES
from testbed.verdict.gates import Limits
from testbed.workload.settings import TCP_RTO_MIN_S, AnyArm, BuiltIn, Name, Programs, ProgramsArm
from testbed.workload.torchrun import FIRST_WITH_LEGS, AnyWorkload, Torchrun, TorchrunArm

ArmName = Annotated[
    str,
    form(
        r"^[a-z0-9][a-z0-9.-]{0,63}$",
        "names of up to 64 lower-case letters, digits, hyphens and full stops",
    ),
]
LAB_MTU_BYTES = 1500
_MOST_ROUNDS = 1_000_000
MOST_SEEDS = 10_000
_MOST_IMPAIRMENTS = 200  # each is compared with each other one
_UNSTATED = False  # a value that nobody gives, and that JSON has
_MOST_SEED = 2**63 - 1
_OF_TRAINING = ("training", "transport", "phases", "published")
_ARMS: dict[type[Section], type[AnyArm]] = {
    BuiltIn: Arm,
    Programs: ProgramsArm,
    Torchrun: TorchrunArm,
}


def _arm(value: Any, info: ValidationInfo) -> AnyArm:
    workload = info.data.get("workload")
    if workload is None:  # it is wrong: nobody knows what would be right here
        return AnyArm()
    kind = _ARMS[type(workload)]
    try:
        return kind.model_validate(value, context=info.context)
    except ValidationError as error:
        wrong = problems.of(error, kind)
        if not wrong[0].place and not isinstance(value, Mapping):
            raise ValueError(wrong[0].message) from None  # with the value before it
        raise problems.raised(wrong) from None


def _rounds(value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """The number of rounds, which programs need not state; 0 stands for that."""
    if value is not _UNSTATED:
        return check(value)
    if not isinstance(info.data.get("workload"), BuiltIn):
        return 0
    raise problems.raised([Problem((), "this key is missing", problems.MISSING)])


class Transport(Section):
    """The keys of the transport that all arms share."""

    chunk_bytes: int = Field(
        default=1456, ge=4, multiple_of=4, description="payload of one datagram of our transport"
    )
    pace: float = Field(
        default=0.97,
        gt=0,
        le=1.5,
        description="rate of `fixed` over a sender's fair share of the link",
    )
    quantum_s: float = Field(
        default=QUANTUM_S,
        gt=0,
        le=LONGEST_QUANTUM_S,
        description="how much of its rate `fixed` sends at a time, if a quarter of a sender's "
        "share of the smallest queue holds it",
    )
    peer_timeout_s: float = Field(
        default=30.0, gt=0, description="a peer that is silent for so long counts as lost"
    )
    tcp_rto_min_s: float | None = TCP_RTO_MIN_S

    @field_validator("chunk_bytes")
    @classmethod
    def _fits_a_frame(cls, chunk_bytes: int) -> int:
        largest = largest_chunk_bytes(LAB_MTU_BYTES)
        if chunk_bytes > largest:
            raise ValueError(
                f"the lab's links carry packets of {LAB_MTU_BYTES} bytes, headers included; "
                f"valid: multiples of 4 up to {largest}"
            )
        return chunk_bytes


class Simulation(Section):
    """The time that workers and switches take in virtual time; a lab's take what they take."""

    wakes_s: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="for a worker to do what it is told, such as to begin a gather: the mean of "
        "exponential draws",
    )
    compute_s: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="for each iteration of a worker, where `training.pace` is `real`: simulated "
        "runs are paced at it; 0: they are refused",
    )
    spray: bool = Field(
        default=False,
        description="switches choose among equally short paths for each datagram, in turn, not for "
        "each flow; a lab refuses it",
    )


class Experiment(Section):
    """One YAML file: one of `experiments/`, or any other by its path."""

    name: Name = Field(description="names the folder of results, and the experiment in reports")
    description: str = Field(default="", description="one line for `./lab list` and the report")
    workload: AnyWorkload = Field(
        default=BuiltIn(),
        description="what runs: the built-in training, programs, or a training script",
    )
    rounds: Annotated[
        int,
        Field(ge=1, le=_MOST_ROUNDS),
        WrapValidator(_rounds),
        Field(validate_default=True, json_schema_extra={"default": None}),
    ] = Field(
        default=_UNSTATED, description="of training in each run; of programs, those they announce"
    )
    seeds: list[int] = Field(
        min_length=1,
        max_length=MOST_SEEDS,
        description="one run per arm, point of the factors and seed; distinct numbers, 0 or more",
    )
    topology: topologies.AnyTopology = Field(description="the network")
    training: Training = Field(default=Training(), description="what the workers compute")
    transport: Transport = Field(default=Transport(), description="what all arms share")
    phases: AnyPhases = Field(
        default=phases.DEFAULT, description="what decides whether a round is critical"
    )
    arms: dict[ArmName, Annotated[AnyArm, BeforeValidator(_arm)]] = Field(
        min_length=1,
        description="the protocols that are compared, by names of your own; of programs, what is "
        "changed",
    )
    impairments: list[AnyImpairment] = Field(
        default=[],
        max_length=_MOST_IMPAIRMENTS,
        description="what is done to the network, and when",
    )
    factors: dict[str, list[Any]] = Field(
        default={},
        description="the points of a sweep: a key path with its values, or any name with labelled "
        "levels, each of which replaces several key paths",
    )
    profiles: dict[Name, dict[str, Any]] = Field(
        default={}, description="other sizes: by the profile's name, key paths with values"
    )
    published: list[str] | None = optional(
        "ids of published numbers to show beside ours; none: all that fit"
    )
    compare: list[tuple[Name, Name]] = Field(
        default=[],
        description="pairs of arms whose runs tables compare, `[[fixed-low, dblp]]`; none: each "
        "arm with `dblp`, or else with the first",
    )
    limits: Limits = Field(
        default=Limits(), description="of the gates; a run that exceeds one of them is invalid"
    )
    simulation: Simulation = Field(
        default=Simulation(),
        description="of `./lab simulate` alone; runs of a lab are without it",
        # Without it, runs have the keys that they had before there was this key.
        exclude_if=lambda value: value == Simulation(),
    )
    datapath: Choice = Field(
        default="auto",
        description="of Open vSwitch: its module in the kernel, or its daemon; `auto`: the "
        "kernel's where it works",
    )

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds_are_no_count(cls, value: Any) -> Any:
        if isinstance(value, int):
            raise ValueError(
                f"{value}: must be a list, such as [1, 2, 3]; --seeds NUMBER is a count"
            )
        return value

    @field_validator("seeds")
    @classmethod
    def _seeds_are_distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) != len(seeds) or any(not 0 <= seed <= _MOST_SEED for seed in seeds):
            raise ValueError(f"must be distinct whole numbers from 0 to {_MOST_SEED:_}")
        return seeds

    @model_validator(mode="after")
    def _compared_arms_exist(self) -> Experiment:
        for number, pair in enumerate(self.compare):
            words = "there twice" if pair in self.compare[:number] else ""
            words = f"{pair[0]!r} with itself" if pair[0] == pair[1] else words
            for name in pair:
                if name not in self.arms:
                    words = f"{name!r} is no arm; {one_of(name, self.arms)}"
            if words:
                raise problems.raised([Problem(("compare", number), words)])
        return self

    @model_validator(mode="after")
    def _programs_fit(self) -> Experiment:
        if self.trains:
            return self
        if useless := self.model_fields_set.intersection(_OF_TRAINING):
            words = f"belongs to the built-in training, and workload.kind is {self._kind!r}"
            raise problems.raised(Problem((key,), words, problems.UNKNOWN) for key in useless)
        assert isinstance(self.workload, Programs | Torchrun)
        hosts = self.topology.all_host_names()
        for problem in self.workload.unknown_hosts(hosts):
            raise problems.raised([problem._replace(place=("workload", *problem.place))])
        for name in self.workload.datasets if isinstance(self.workload, Torchrun) else ():
            if name not in DATASETS:
                words = f"{name!r}: {one_of(name, DATASETS)}"
                raise problems.raised([Problem(("workload", "datasets"), words)])
        for name in self.arms:
            try:
                wrong = [*self.programs(name).unknown_hosts(hosts)]
            except ValidationError as error:
                wrong = problems.of(error, Programs)
            if wrong:
                raise problems.raised(p._replace(place=("arms", name, *p.place)) for p in wrong)
        return self

    @model_validator(mode="after")
    def _impairments_fit(self) -> Experiment:
        for seed in self.seeds:
            try:
                self.resolved_impairments(seed)
            except InputError as error:
                raise problems.raised(map(problems.of_message, error.args)) from None
        for number, impairment in enumerate(self.impairments if not self.trains else []):
            if impairment.of_our_transport:
                raise ValueError(
                    f"impairments.{number}.kind: {impairment.kind!r} acts in the training's own "
                    f"transport, and workload.kind is {self._kind!r}; valid: another, such as "
                    "'loss'"
                )
        return self

    @model_validator(mode="after")
    def _legs_are_announced(self) -> Experiment:
        """Refuse what waits for a leg that the hook of an arm does not announce."""
        if not isinstance(self.workload, Torchrun):
            return self
        for number, entry in enumerate(self.impairments):
            if entry.rounds is None or entry.leg == "round":
                continue
            for name, arm in self.arms.items():
                assert isinstance(arm, TorchrunArm)
                if not arm.is_ours:
                    raise ValueError(
                        f"impairments.{number}.leg: {entry.leg!r}, but arms.{name} has the "
                        f"hook {arm.hook!r}, which has no legs; valid: round"
                    )
            timelines = map(self.resolved_impairments, self.seeds)
            if any(min(timeline[number]["rounds"]) < FIRST_WITH_LEGS for timeline in timelines):
                raise ValueError(
                    f"impairments.{number}.rounds: the first {FIRST_WITH_LEGS} rounds have no "
                    "legs, since buckets are not known yet; valid: later ones, or leg: round"
                )
        return self

    @property
    def _kind(self) -> str:
        return str(getattr(self.workload, "kind", ""))

    @model_validator(mode="after")
    def _processes_fit(self) -> Experiment:
        together = getattr(self.training.pace, "workers_per_process", None) or 1
        for index, entry in enumerate(self.impairments if together > 1 else []):
            if entry.acts_on_process:
                raise ValueError(
                    f"training.pace.workers_per_process: {together}, but impairments.{index} "
                    f"({entry.kind}) acts on one worker's process; valid: 1, or leave the key out"
                )
        return self

    @model_validator(mode="after")
    def _training_fits(self) -> Experiment:
        if not self.trains:
            return self
        if "server" not in self.topology.host_names():
            raise ValueError("topology.hosts: training needs a server, worker-1, worker-2, ...")
        return self

    @model_serializer(mode="wrap")
    def _without_the_other_workload(self, serialise: SerializerFunctionWrapHandler) -> Any:
        """Its keys but for those of the workload that it has not."""
        unused = {"workload"} if self.trains else set(_OF_TRAINING)
        if not self.rounds:
            unused.add("rounds")
        return {key: value for key, value in serialise(self).items() if key not in unused}

    @property
    def trains(self) -> bool:
        return isinstance(self.workload, BuiltIn)

    def protocol_arm(self, name: str) -> Arm:
        arm = self.arms[name]
        assert isinstance(arm, Arm), "programs have no protocol"
        return arm

    def programs(self, arm: str) -> Programs:
        changes = self.arms[arm]
        if isinstance(self.workload, Torchrun):
            assert isinstance(changes, TorchrunArm)
            links = topologies.build(self.topology).link_options().values()
            least = {key: min(link[key] for link in links) for key in ("rate_bps", "queue_bytes")}
            return changes.applied(
                self.workload,
                self.topology.host_names(),
                link_rate_bps=least["rate_bps"],
                queue_bytes=least["queue_bytes"],
            )
        assert isinstance(self.workload, Programs) and isinstance(changes, ProgramsArm)
        return changes.applied(self.workload)

    @property
    def working_hosts(self) -> list[str]:
        named = self.workload.hosts if isinstance(self.workload, Programs | Torchrun) else None
        return named or self.topology.host_names()

    def own_code(self, arm: str, folder: Path) -> list[str]:
        """The files and modules of a user's own that a run of this arm executes."""
        of_all = own_code.places([*(entry.kind for entry in self.impairments), self.topology.name])
        if not self.trains:
            # A training script may lie anywhere.
            script = [self.workload.script] if isinstance(self.workload, Torchrun) else []
            return sorted({*of_all, *script, *self.programs(arm).files(folder)})
        protocol, training = self.protocol_arm(arm).resolved().describe(), self.training
        of_training = own_code.places(
            [
                *(protocol[key] for key in REGISTRIES if key in protocol),
                *self.protocol_arm(arm).resolved_filling().values(),
                *(training.model, training.optimiser, training.schedule.kind),
                *(training.dataset.name, self.phases.detector),
            ]
        )
        return sorted({*of_all, *of_training})

    def resolved_impairments(self, seed: int) -> list[dict[str, Any]]:
        """The timeline of a run with this seed, periods and random draws as lists."""
        if not self.impairments:
            return []
        for number, impairment in enumerate(self.impairments if not self.rounds else []):
            if getattr(impairment.rounds, "until", 0) is None:
                raise ValueError(
                    f"impairments.{number}.rounds: has no end; valid: with until, a list, or "
                    "beside the key rounds of the experiment"
                )
        rounds = self.rounds or _MOST_ROUNDS
        return impairment_plan.resolve(self.impairments, self._places, rounds=rounds, seed=seed)

    @cached_property
    def _places(self) -> impairment_plan.Places:
        network = topologies.build(self.topology)
        hosts = self.topology.all_host_names()
        return impairment_plan.Places.of(network, hosts, self.working_hosts)
