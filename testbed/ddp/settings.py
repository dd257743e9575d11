"""What a user says about the exchange, checked before any rank is met."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from testbed.ddp.lateness import WINDOW
from testbed.shared.input_error import InputError, shown
from testbed.shared.registry import one_of
from testbed.shared.version import version
from testbed.training.detector import Detector, GradientNorm
from testbed.training.filling import FILLINGS, Filling
from testbed.transport import Leg, ProtocolConfig, preset
from testbed.transport.core.connection_settings import LeaveOut
from testbed.transport.core.tolerance import StopRuleFactory
from testbed.transport.core.wire import check_chunk_bytes
from testbed.transport.policies.tolerance import PerLayer

Collective = Literal["sharded", "server"]
Mode = Literal["bounded", "reliable", "local"]

# Those that need nothing besides one round's payloads. `previous` and `whole-tensors` do.
_FILLINGS = ("error-feedback", "rescale", "zero")
# Besides the protocol and the phase.
_EQUAL = ("collective", "mode", "filling", "chunk_bytes", "insecure", "late_share", "min_ranks")
_MEASURED = "bbr"
_PHASE = "gradient-norm"


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
