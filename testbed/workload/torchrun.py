"""`torchrun`: a training script of a user's own, each rank a program with torchrun's environment.

What an arm changes goes to the hook `testbed.ddp.BoundedLoss` through the variable BOUNDED_LOSS.
To add one of PyTorch's hooks: a line in `testbed.ddp.settings`, and one in `HOOKS` here. With
`backend` its collectives go over our transport, so such an arm has the keys of both.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from testbed.shared import own_code, problems
from testbed.shared.input_error import shown
from testbed.shared.named_sections import OneOf, folders
from testbed.shared.problems import Problem, Section, form, optional
from testbed.shared.registry import Registry, one_of
from testbed.transport import presets
from testbed.transport.presets import ProtocolConfig
from testbed.transport.wire import DATA_PORTS
from testbed.workload.settings import (
    LAB_PYTHON,
    TARGET,
    TCP_RTO_MIN_S,
    AnyArm,
    Arguments,
    BuiltIn,
    Programs,
)

HOOK_ENVIRONMENT = "BOUNDED_LOSS"  # testbed.ddp.settings reads it
_MASTER_PORT = 29500  # torchrun's own default
# Gloo listens on ports that the kernel chooses, which in a new network namespace are these.
_CHOSEN_BY_KERNEL = (32768, 60999)
# What a rank sends at of its share of the slowest link, as the built-in training does: the rest is
# for control messages and repeats.
_PACE = 0.97
FIRST_WITH_LEGS = 2  # before, DDP's buckets are not known, and the process group averages

OURS = "bounded-loss"
Hook = Literal["bounded-loss", "gloo", "fp16_compress", "powerSGD"]
# The keys of an arm that mean something to each of PyTorch's hooks.
HOOKS: Mapping[str, tuple[str, ...]] = {
    "gloo": (),
    "fp16_compress": ("backend",),
    "powerSGD": ("rank", "from_step", "backend"),
}
_OF_TRANSPORT = ("protocol", "rate_bps", "insecure")
_OF_OURS = (
    *_OF_TRANSPORT,
    *("mode", "collective", "filling", "late_share", "min_ranks"),
)
_OF_ALL = ("hook", "args", "congestion_control")


class Torchrun(Section):
    """A script of your own for DistributedDataParallel, in place of the built-in training."""

    kind: Literal["torchrun"] = "torchrun"
    script: Annotated[str, form(r"^.+\.py$", "the path of a file that ends in .py")] = Field(
        description="the training script, which `torchrun` could run; a relative path begins "
        "beside the experiment, or in the current folder"
    )
    args: Arguments = Field(
        default=[], description="its arguments: a list, or a text that is divided at spaces"
    )
    hosts: list[str] | None = optional(
        "the hosts in the order of ranks; none: `server`, `worker-1`, `worker-2`, ...", min_length=1
    )
    python: Annotated[str, Field(min_length=1)] = Field(
        default=LAB_PYTHON,
        description="the interpreter; `lab-python` is the lab's own, which has torch and the hook",
    )
    time_limit_s: float | None = optional(
        "the longest time that it may take; none: `limits.run_timeout_s` alone", gt=0, le=1e6
    )
    target: float | None = optional(TARGET, gt=0)
    datasets: list[str] = Field(
        default=[], description="data sets of the lab that it loads: made ready before the run"
    )

    @field_validator("script")
    @classmethod
    def _script_is_there(cls, script: str, info: ValidationInfo) -> str:
        return own_code.located(script, folders(info))

    @field_validator("hosts")
    @classmethod
    def _hosts_are_distinct(cls, hosts: list[str] | None) -> list[str] | None:
        for number, host in enumerate(hosts or []):
            if host in (hosts or [])[:number]:
                raise ValueError(f"{host!r} stands twice; valid: a rank on each host")
        return hosts

    def unknown_hosts(self, valid: Sequence[str]) -> list[Problem]:
        return [
            Problem(("hosts", number), f"unknown host {host!r}; {one_of(host, valid)}")
            for number, host in enumerate(self.hosts or [])
            if host not in valid
        ]


WORKLOADS: Registry[Section] = Registry(
    "workload", {"training": BuiltIn, "programs": Programs, "torchrun": Torchrun}
)
AnyWorkload = Annotated[
    BuiltIn | Programs | Torchrun, OneOf(WORKLOADS, key="kind", base=Section, default="training")
]


def _ours(about: str, **bounds: Any) -> Any:
    return optional(f"of ours: {about}", **bounds)


class TorchrunArm(AnyArm):
    """The settings that an arm gives to the hook in place of the script's own.

    All further keys are settings of the protocol's preset, as `low` of `dblp`.
    """

    hook: Hook = Field(
        default="bounded-loss", description="what averages: ours, or one of PyTorch's"
    )
    backend: Literal["bounded"] | None = optional(
        "of `fp16_compress` and `powerSGD`: their collectives over our transport, with a "
        "`protocol`, of which nothing is lost; none: over Gloo"
    )
    args: Arguments | None = optional("in place of the workload's")
    protocol: str | None = _ours(
        "a preset; none: what the script names, without settings of it; with `backend`, whose it is"
    )
    mode: Literal["bounded", "reliable", "local"] | None = _ours("`local` sends nothing")
    collective: Literal["sharded", "server"] | None = _ours("who averages")
    filling: Literal["error-feedback", "rescale", "zero"] | None = _ours("what stands for losses")
    rate_bps: float | None = _ours(
        "what a rank's link carries; none: with a protocol of a fixed rate 0.97 of the network's "
        "slowest link; else what the script says, or measured",
        gt=0,
        allow_inf_nan=False,
    )
    insecure: bool | None = _ours("without keys, as the built-in training; false: authenticated")
    late_share: float | None = _ours("share of buckets that a late rank may miss", ge=0, le=1)
    min_ranks: int | None = _ours(
        "with `collective: server`: the fewest ranks that go on when others are lost, rank 0 among "
        "them; a `crash` of another rank's program then does not end the run",
        ge=1,
    )
    rank: int | None = optional("of `powerSGD`", ge=1, le=1024)
    from_step: int | None = optional(
        "of `powerSGD`: where it begins to compress", ge=2, le=1_000_000
    )
    congestion_control: str | None = optional(
        "of PyTorch's hooks over Gloo the kernel's, for all TCP of the hosts"
    )
    tcp_rto_min_s: float | None = TCP_RTO_MIN_S

    @property
    def is_ours(self) -> bool:
        return self.hook == OURS

    @property
    def _is_carried(self) -> bool:
        """Tell whether our transport carries it."""
        return self.is_ours or (self.backend is not None and "backend" in HOOKS[self.hook])

    @property
    def _own_keys(self) -> tuple[str, ...]:
        if self.is_ours:
            return _OF_OURS
        return (*HOOKS[self.hook], *(_OF_TRANSPORT if self._is_carried else ()))

    @model_validator(mode="after")
    def _keys_fit_the_hook(self) -> TorchrunArm:
        if not self._is_carried:
            valid = [*_OF_ALL, "tcp_rto_min_s", *HOOKS[self.hook]]
            words = f"hook {self.hook!r} has no such key"
        elif self.protocol is None and not self.is_ours:
            words = "missing, and backend needs it; valid: a preset, such as none"
            raise problems.raised([Problem(("protocol",), words, problems.MISSING)])
        elif self.protocol is None:
            valid, words = ["hook", "args", *_OF_OURS], "unknown key without a protocol"
        else:
            try:
                settings = presets.settings(self.protocol)
            except ValueError as error:
                raise problems.raised([Problem(("protocol",), str(error))]) from None
            valid = [*dict.fromkeys((*_OF_ALL, *self._own_keys, *settings))]
            words = f"protocol {self.protocol!r} has no such key"
        words += f"; valid: {', '.join(valid)}"
        keys = (*self.model_fields_set, *(self.model_extra or {}))
        if unknown := [Problem((k,), words, problems.UNKNOWN) for k in keys if k not in valid]:
            raise problems.raised(unknown)
        if not self._is_carried:
            if not re.fullmatch(r"\w{1,15}", self.congestion_control or "cubic"):
                words = f"{shown(self.congestion_control)}: valid: a name that the kernel knows"
                raise problems.raised([Problem(("congestion_control",), words)])
            return self
        if self.protocol is not None:
            try:  # what its settings need of each other the hook refuses
                self._preset()
            except TypeError as error:  # a value of a wrong kind
                raise ValueError(str(error)) from None
        return self

    @property
    def _options(self) -> dict[str, Any]:
        control = self.congestion_control
        own = {} if control is None else {"congestion_control": control}
        return {**(self.model_extra or {}), **own}

    def _preset(self) -> ProtocolConfig:
        return presets.preset(str(self.protocol), **self._options)

    def applied(
        self,
        workload: Torchrun,
        hosts: Sequence[str],
        *,
        link_rate_bps: float,
        queue_bytes: float,
    ) -> Programs:
        """Returns the programs; the rate and the queue are the least of the network."""
        hosts = workload.hosts or hosts
        arguments = workload.args if self.args is None else self.args
        if (self.min_ranks or 0) > len(hosts):
            words = f"{self.min_ranks}: valid: 1 to {len(hosts)}, the number of ranks"
            raise problems.raised([Problem(("min_ranks",), words)])
        keys = self._own_keys if self.is_ours else ("hook", *self._own_keys)
        hook = {key: getattr(self, key) for key in keys if getattr(self, key) is not None}
        data_ports = _CHOSEN_BY_KERNEL
        if self._is_carried:
            hook |= self._options
            # Above the ports of control messages, which a loss spares, come those of data.
            fixed = {"port": DATA_PORTS[0] - 1, "segmentation": False}
            if self.protocol is not None and self.rate_bps is None and self._preset().needs_rate:
                hook["rate_bps"] = math.floor(_PACE * link_rate_bps)
                hook["queue_bytes"] = queue_bytes
            hook = {"insecure": True, **hook, **fixed}
            data_ports = DATA_PORTS
        shared = {
            "MASTER_ADDR": hosts[0],
            "MASTER_PORT": str(_MASTER_PORT),
            "WORLD_SIZE": str(len(hosts)),
            "LOCAL_WORLD_SIZE": "1",
            "OMP_NUM_THREADS": "1",  # all hosts share the machine's processors
            HOOK_ENVIRONMENT: json.dumps(hook, sort_keys=True),
        }
        programs = [
            {
                "host": host,
                "name": host,
                "run": [workload.python, "-u", workload.script, *arguments],
                "time_limit_s": workload.time_limit_s,
                "may_be_killed": self.min_ranks is not None and rank > 0,
                "congestion_control": None if self._is_carried else self.congestion_control,
                "environment": shared
                | {"RANK": str(rank), "LOCAL_RANK": "0", "GROUP_RANK": str(rank)},
            }
            for rank, host in enumerate(hosts)
        ]
        return Programs.model_validate(
            {
                "programs": programs,
                "data_ports": data_ports,
                "target": workload.target,
                "tcp_rto_min_s": self.tcp_rto_min_s,
            }
        )
