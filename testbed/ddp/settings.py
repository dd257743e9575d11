"""What a user says about the exchange, checked before any rank is met.

The keys of the environment variable BOUNDED_LOSS are arguments of `BoundedLoss`, settings of the
protocol's preset (`low`), or `hook`: the name of one of PyTorch's, beside its own options.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch.distributed as dist

from testbed.ddp.lateness import WINDOW
from testbed.ddp.torch_hooks import HOOKS, Hook
from testbed.shared.input_error import InputError, shown
from testbed.shared.registry import one_of
from testbed.shared.version import version
from testbed.training.detector import Detector, GradientNorm
from testbed.training.filling import Filling
from testbed.training.fillings import FILLINGS
from testbed.transport import Leg, ProtocolConfig, preset
from testbed.transport.settings import LeaveOut
from testbed.transport.tolerance import PerLayer, StopRuleFactory
from testbed.transport.wire import check_chunk_bytes

Collective = Literal["sharded", "server"]
Mode = Literal["bounded", "reliable", "local"]

# Those that need nothing besides one round's payloads.
_FILLINGS = ("error-feedback", "rescale", "zero")
# Besides the protocol and the phase.
_EQUAL = ("collective", "mode", "filling", "chunk_bytes", "insecure", "late_share", "min_ranks")
_MEASURED = "bbr"
_PHASE = "gradient-norm"
ENVIRONMENT = "BOUNDED_LOSS"
OURS = "bounded-loss"
_IN_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_ARGUMENTS: dict[str, type] = {
    **dict.fromkeys(("collective", "mode", "filling", "interface", "phase"), str),
    **dict.fromkeys(("rate_bps", "queue_bytes", "timeout_s", "late_share"), float),
    **dict.fromkeys(("port", "chunk_bytes", "transfers_in_flight", "min_ranks"), int),
    **dict.fromkeys(("insecure", "segmentation"), bool),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """See `BoundedLoss`; the constructor raises InputError for what cannot be used."""

    protocol: ProtocolConfig
    free: bool  # the user has left the congestion control to us
    collective: Collective
    mode: Mode
    filling: str
    rate_bps: float
    interface: str | None
    port: int | None
    timeout_s: float | None
    insecure: bool
    chunk_bytes: int | None
    transfers_in_flight: int
    queue_bytes: float
    segmentation: bool
    leave_out: LeaveOut | None
    late_share: float
    min_ranks: int | None
    phase: str | Detector | None

    def __post_init__(self) -> None:
        for key, valid in (
            ("collective", get_args(Collective)),
            ("mode", get_args(Mode)),
            ("filling", _FILLINGS),
        ):
            if getattr(self, key) not in valid:
                value = getattr(self, key)
                raise InputError(f"{key} is {shown(value)}; {one_of(str(value), valid)}")
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            raise InputError(f"timeout_s is {self.timeout_s}; valid: seconds, above 0 and finite")
        if not self.rate_bps > 0:
            raise InputError(f"rate_bps is {self.rate_bps}; valid: bits per second, above 0")
        if self.transfers_in_flight < 1:
            raise InputError(f"transfers_in_flight is {self.transfers_in_flight}; valid: 1 or more")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise InputError(f"port is {self.port}; valid: 1 to 65535, or None for free ones")
        try:
            if self.chunk_bytes is not None:
                check_chunk_bytes(self.chunk_bytes)
        except ValueError as error:
            raise InputError(str(error)) from None
        if self.late_share != 0 and not 1 / WINDOW <= self.late_share <= 1:
            raise InputError(f"late_share is {self.late_share}; valid: 0, or {1 / WINDOW} to 1")
        owed = self.mode == "bounded" and self.filling == "error-feedback"
        if self.late_share and not owed:
            raise InputError(
                f"late_share is {self.late_share}, mode {shown(self.mode)} and filling "
                f"{shown(self.filling)}; valid: 0, or a share with mode='bounded' and "
                "filling='error-feedback'"
            )
        if self.protocol.compresses:
            raise InputError(
                f"protocol {self.protocol.name!r} {self.protocol.compresses}; "
                "valid: one that sends all of them: a complete mean keeps replicas equal; compress "
                "by PyTorch's own hooks, such as powerSGD"
            )
        if self.late_share and self.protocol.carrier == "tcp":
            raise InputError(
                f"late_share is {self.late_share}; valid: 0 with the protocol "
                f"{self.protocol.name}, which cannot leave out what is late"
            )
        if self.min_ranks is not None and (self.min_ranks < 1 or self.collective != "server"):
            raise InputError(
                f"min_ranks is {self.min_ranks} and collective {shown(self.collective)}; valid: "
                "None, or 1 and more with collective='server', where one rank decides for all"
            )
        if not (self.phase in (None, _PHASE) or isinstance(self.phase, Detector)):
            raise InputError(
                f"phase is {shown(self.phase)}; valid: {_PHASE}, a Detector of testbed.training, "
                "or None"
            )
        if self.mode == "bounded" and isinstance(self.protocol.gather, PerLayer):
            raise InputError(
                f"protocol {self.protocol.name}: it bounds the loss of each layer, and a bucket "
                "has no names of layers; valid: a protocol with one bound, such as dblp"
            )

    @property
    def filled(self) -> Filling:
        """What stands for chunks that did not arrive; nothing is missing unless `bounded`."""
        return FILLINGS.create(self.filling if self.mode == "bounded" else "zero")

    @property
    def detector(self) -> Detector | None:
        """What says whether training is critical; None: the script does."""
        return GradientNorm() if isinstance(self.phase, str) else self.phase

    def protocol_on(self, *, inside: bool) -> ProtocolConfig:
        """The protocol between ranks that are all on this machine, or not."""
        if not (inside and self.free):
            return self.protocol
        # Inside a machine nothing is lost but what a socket has no room for, and the transport
        # knows that room: to measure such a path costs more than the exchange.
        if self.mode == "reliable" and self.leave_out is None:
            return preset("tcp-reno")  # which every kernel has
        return replace(self.protocol, congestion_control="fixed")

    def first_leg(self, critical: bool) -> float | StopRuleFactory:
        """What the receiver of gradients may give up. The means are always complete."""
        if self.mode != "bounded":
            return 0.0
        return self.protocol.policy(Leg.GATHER).stop_rule(critical)

    def terms(self, torch_version: str) -> dict[str, str]:
        """What must be equal on all ranks, in words."""
        return {
            "the version of bounded-loss-testbed": version(),
            "the version of torch": torch_version,
            **{f"protocol: {key}": each for key, each in self.protocol.describe().items()},
            **{key: str(getattr(self, key)) for key in _EQUAL},
            "phase": "None" if self.phase is None else type(self.detector).__name__,
        }


def protocol_of(
    value: str | ProtocolConfig, rate_bps: float | None, **options: Any
) -> tuple[ProtocolConfig, bool]:
    """The protocol, and whether its congestion control is our choice, since no rate is known."""
    if isinstance(value, ProtocolConfig):
        if options:
            raise InputError(f"{next(iter(options))} belongs to a preset, and none is named")
        protocol = value
    elif isinstance(value, str):
        try:
            protocol = preset(value, **options)
            if rate_bps is None and protocol.needs_rate and "congestion_control" not in options:
                return preset(value, congestion_control=_MEASURED, **options), True
        except ValueError as error:
            raise InputError(f"protocol: {error}") from None
    else:
        raise InputError(f"protocol is {shown(value)}; valid: a preset's name or a ProtocolConfig")
    if rate_bps is None and protocol.needs_rate:
        raise InputError(
            f"rate_bps is missing, which the congestion control of {protocol.name} needs "
            f"({protocol.congestion_control}); valid: the links' bits per second, or a control "
            f"that measures, such as {_MEASURED}"
        )
    return protocol, False


def difference(
    facts: Sequence[Mapping[str, Any]], valid: str = "the same on all ranks"
) -> str | None:
    """What differs between the ranks, in one line that is the same on all of them."""
    for rank, theirs in enumerate(facts):
        for key, ours in facts[0].items():
            if theirs.get(key) != ours:
                return (
                    f"{key} is {shown(theirs.get(key))} on rank {rank} and {shown(ours)} on "
                    f"rank 0; valid: {valid}"
                )
    return None


def resolve(
    protocol: str | ProtocolConfig, given_by_script: Mapping[str, Any]
) -> tuple[Settings, Callable[[dist.ProcessGroup], Hook] | None]:
    """The arguments of `BoundedLoss`, replaced where the environment says so; InputError.

    Returns also what makes one of PyTorch's hooks, which then does everything; None: ours does.
    """
    arguments = {key: given_by_script[key] for key in (*_ARGUMENTS, "leave_out")}
    text = os.environ.get(ENVIRONMENT)
    if text is None:
        protocol, free = protocol_of(protocol, arguments["rate_bps"])
        return _settings(protocol, free, arguments), None
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    try:
        if not isinstance(given, dict):
            raise InputError(f"is {shown(text)}; valid: a JSON object of arguments")
        instead = _torch_hook(given)
        if instead is None:
            protocol = given.pop("protocol", protocol)
            for key in _ARGUMENTS.keys() & given.keys():
                arguments[key] = _checked(key, given.pop(key), _ARGUMENTS[key])
        protocol, free = protocol_of(protocol, arguments["rate_bps"], **given)
    except (InputError, TypeError) as error:
        raise InputError(f"{ENVIRONMENT}: {error}") from None
    return _settings(protocol, free, arguments), instead


def _settings(protocol: ProtocolConfig, free: bool, arguments: dict[str, Any]) -> Settings:
    rate_bps = math.inf if arguments["rate_bps"] is None else arguments["rate_bps"]
    return Settings(protocol=protocol, free=free, **{**arguments, "rate_bps": rate_bps})


def _torch_hook(given: dict[str, Any]) -> Callable[[dist.ProcessGroup], Hook] | None:
    """Takes from what is given all that is about a hook; None where that is ours."""
    name = given.pop("hook", OURS)
    if name == OURS:
        return None
    if name not in HOOKS:
        raise InputError(f"hook is {shown(name)}; {one_of(str(name), [OURS, *HOOKS])}")
    make, options = HOOKS[name]
    chosen = {key: _checked(key, given.pop(key, option), int) for key, option in options.items()}
    if given:
        key = next(iter(given))
        raise InputError(
            f"the hook {name} has no {key!r}; valid: {', '.join(options) or 'nothing'}"
        )
    return lambda group: make(group, **chosen)


def _checked(key: str, value: Any, kind: type) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number if kind is float else type(value) is kind:
        return value
    raise InputError(f"{key} is {shown(value)}; valid: {_IN_WORDS[kind]}")
