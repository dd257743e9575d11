"""The runs of an experiment: each one's configuration, the key that is its hash, and their order.

A machine changes with time. So all arms of one point and seed follow one another, as a block, in
an order that differs from block to block.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, SkipValidation

from testbed.experiment.files import DEFAULT_PROFILE, NOT_OF_A_PROFILE
from testbed.experiment.schema import Experiment
from testbed.training import prerequisites
from testbed.transport.presets import ProtocolConfig
from testbed.verdict.gates import Limits
from testbed.workload.settings import Programs

SCHEMA = 1
_LONGEST_LABEL = 96  # characters of it in the name of a run's folder
ORDER_RULE = (
    "seeds as given; for each seed the points of the factors, and for each of these the arms, by "
    "the SHA-256 of the experiment's name, the seed, the point and the arm"
)
# Keys that plan, describe or scale an experiment, but do not change what one run does.
NOT_OF_A_RUN = {*NOT_OF_A_PROFILE, "seeds", "arms", "factors"}
# Keys of `config.json` that change nothing of the run.
_NOT_IN_KEY = {"schema", "key", "folder", "profile", "capture"}
# An earlier default. The stricter one judges the same runs, so their keys stay as they were.
_FORMER_CONSERVATION = 0.001


class Run(BaseModel):
    """One arm, one point of the factors, one seed."""

    model_config = ConfigDict(frozen=True)

    experiment: SkipValidation[Experiment]  # checked once, not for each of its runs
    arm: str  # a label: the name in the file, and what a command changes
    name_in_file: str  # of the arm that it comes from
    seed: int
    factors: dict[str, Any]  # factor -> the run's value of it, or that value's label
    folder: Path | None = None  # of the file
    source: Path | None = None  # the YAML file, for messages
    profile: str = DEFAULT_PROFILE
    simulated: bool = False  # it happens in virtual time, without a lab
    code: dict[str, str] = {}  # SHA-256 of each file or module of a user's own that it executes
    # What all runs share, and what the arm is: whether runs of two commands belong together.
    settings: dict[str, Any] = {}
    definition: dict[str, Any] = {}

    def in_virtual_time(self) -> Run:
        """The same run, simulated: it has another key."""
        costs = self.experiment.simulation.model_dump(exclude_defaults=True)
        settings = {**self.settings, **({"simulation": costs} if costs else {})}
        run = self.model_copy(update={"simulated": True, "settings": settings})
        run.__dict__.pop("key", None)  # kept of the other
        return run

    @property
    def training_need(self) -> prerequisites.Need:
        """The model and data that it trains, which may lie beside the experiment."""
        hosts = len(self.experiment.topology.host_names())
        training = self.experiment.training
        return prerequisites.Need(training, hosts=hosts, seed=self.seed, folder=self.folder)

    @property
    def label(self) -> str:
        factors = "".join(f", {key.split('.')[-1]} {value}" for key, value in self.factors.items())
        return f"{self.arm}, seed {self.seed}{factors}"

    @property
    def protocol(self) -> ProtocolConfig:
        return self.experiment.protocol_arm(self.name_in_file).resolved()

    @property
    def programs(self) -> Programs:
        return self.experiment.programs(self.name_in_file)

    def config(self) -> dict[str, Any]:
        # The same experiment in another folder is the same run, so the key leaves the folder out;
        # a profile counts in it through what it changes, and through nothing else.
        folder = None if self.folder is None else str(self.folder)
        apart = {"schema": SCHEMA, "key": self.key, "folder": folder, "profile": self.profile}
        return apart | self._identity()

    @cached_property
    def key(self) -> str:
        """The hash of the resolved configuration, with the arm and seed in front for humans."""
        return key_of(self._identity())

    def _identity(self) -> dict[str, Any]:
        shared = self.experiment.model_dump(mode="json", exclude=NOT_OF_A_RUN)
        hosts = shared.pop("simulation", {})
        if self.simulated:
            shared |= _in_virtual_time(shared, hosts)
        return {
            "experiment": self.experiment.name,
            "arm": self.arm,
            "seed": self.seed,
            "factors": self.factors,
            **({"code": self.code} if self.code else {}),
            **({"simulated": True} if self.simulated else {}),
            **shared,
            **self._of_arm(shared),
            "impairments": self.experiment.resolved_impairments(self.seed),
        }

    def _of_arm(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        if not self.experiment.trains:
            return {"workload": self.programs.model_dump(mode="json")}
        arm = self.experiment.protocol_arm(self.name_in_file)
        of_arm: dict[str, Any] = {
            "protocol": self.protocol.describe(),
            "filling": arm.resolved_filling(),
        }
        if arm.learning_rate is not None:
            of_arm["training"] = {**shared["training"], "learning_rate": arm.learning_rate}
        return of_arm


def _in_virtual_time(shared: Mapping[str, Any], hosts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs in virtual time: what hosts need, and the pace if it was real."""
    needs = {name: value for name, value in hosts.items() if value and name != "compute_s"}
    changes = {"simulation": needs} if needs else {}
    training, compute_s = shared.get("training"), hosts.get("compute_s")
    if training and compute_s and training["pace"]["kind"] == "real":
        changes["training"] = {**training, "pace": {"kind": "paced", "compute_s": compute_s}}
    return changes


def key_of(config: Mapping[str, Any]) -> str:
    """The key of the run that a configuration describes: that of `config.json`, read or written."""
    document = {name: value for name, value in config.items() if name not in _NOT_IN_KEY}
    if "programs" in document.get("workload", {}):
        # Programs as they were before one could have an environment of its own, where it has none.
        programs = [
            {key: value for key, value in program.items() if key != "environment" or value}
            for program in document["workload"]["programs"]
        ]
        document["workload"] = {**document["workload"], "programs": programs}
    # Once keys of every run and topology: without them all earlier runs would have other keys.
    document.setdefault("controller", "ryu")
    document["topology"] = {**document["topology"], "sha256": None}
    document["topology"].pop("host_cpu", None)  # kept results have it, empty
    if document["datapath"] == "auto":
        # It is the same run on every machine; which datapath it had, its manifest says.
        del document["datapath"]
    limits = document.get("limits", {})
    if limits.get("conservation") == Limits.model_fields["conservation"].default:
        document["limits"] = {**limits, "conservation": _FORMER_CONSERVATION}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    for place, sha256 in document.get("code", {}).items():
        # The same files in another folder are the same run.
        text = text.replace(json.dumps(place)[1:-1], f"{sha256}/{Path(place).name}")
    # Of a label, what is safe in the name of a folder.
    arm = re.sub(r"[^A-Za-z0-9.@=_+-]", "-", document["arm"])[:_LONGEST_LABEL]
    return f"{arm}-s{document['seed']}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def ordered(runs: Sequence[Run]) -> list[Run]:
    places = {seed: place for place, seed in enumerate(dict.fromkeys(run.seed for run in runs))}
    return sorted(
        runs,
        key=lambda run: (
            places[run.seed],
            _draw(run.experiment.name, run.seed, run.factors),
            _draw(run.experiment.name, run.seed, run.factors, run.arm),
        ),
    )


def _draw(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def blocks(runs: Sequence[Run]) -> list[list[Run]]:
    groups = itertools.groupby(ordered(runs), key=lambda run: (run.seed, run.factors))
    return [list(block) for _, block in groups]
