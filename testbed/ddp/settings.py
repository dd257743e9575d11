"""The options of `BoundedLoss`, checked before any rank is met.

The JSON object BOUNDED_LOSS holds options, settings of the preset (`low`), or `hook` with its own,
and with `backend` both.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial, wraps
from numbers import Integral, Real
from types import NoneType
from typing import Any, ClassVar, Literal, Protocol, get_args, get_origin

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from testbed.shared.input_error import InputError, shown
from testbed.shared.registry import one_of
from testbed.shared.version import version
from testbed.training.detector import Detector, GradientNorm
from testbed.training.filling import Filling
from testbed.training.fillings import FILLINGS
from testbed.transport import Leg, PayloadLayout, ProtocolConfig, preset
from testbed.transport.presets import PRESETS, settings
from testbed.transport.settings import LeaveOut
from testbed.transport.tolerance import PerLayer, StopRuleFactory

Collective = Literal["sharded", "server"]
Mode = Literal["bounded", "reliable", "local"]
# Of a filling the hook takes what the owner does; the memory of senders is `steps.Residuals`.
FillingName = Literal["error-feedback", "rescale", "zero"]

WINDOW = 100  # the late share counts in so many parts of a rank
ENVIRONMENT = "BOUNDED_LOSS"
OURS = "bounded-loss"
BACKEND = "bounded"  # of c10d; `testbed.ddp.backend` registers it
_PHASE = "gradient-norm"
_MEASURED = "bbr"
_JSON_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_EQUAL = {"equal": True}  # marks options that must be equal on all ranks


Hook = Callable[[dist.GradBucket], "torch.futures.Future[torch.Tensor]"]


def _power_sgd(group: dist.ProcessGroup, **options: int) -> Hook:
    rank, first = options["rank"], options["from_step"]
    state = powerSGD_hook.PowerSGDState(group, rank, start_powerSGD_iter=first)

    def hook(bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        # It waits for collectives in Gloo's own threads. With two buckets all of these would wait.
        if dist.get_backend(group) != BACKEND:
            future.wait()
        return future

    return hook


# PyTorch's own hooks, which may average in place of ours, with their options' defaults. To add one:
# a line here, with what makes `hook(bucket) -> Future`.
HOOKS: dict[str, tuple[Callable[..., Hook], dict[str, int]]] = {
    "gloo": (lambda group: partial(default_hooks.allreduce_hook, group), {}),
    "fp16_compress": (lambda group: partial(default_hooks.fp16_compress_hook, group), {}),
    "powerSGD": (_power_sgd, {"rank": 1, "from_step": 10}),
}
_LEAST = {"rank": 1, "from_step": 2}
# Those that `backend` may carry. A plain all-reduce over the transport is our mode `reliable`.
CARRIED = [name for name in HOOKS if name != "gloo"]


@dataclass(frozen=True)
class Return:
    """A rank that was lost and comes back: its number in the others' group, and their store.

    The store is such as `TCPStore(MASTER_ADDR, MASTER_PORT, is_master=False)`.
    """

    rank: int
    store: dist.Store


class Scaler(Protocol):
    """The hook asks this of a `torch.amp.GradScaler`."""

    def get_scale(self) -> float: ...


@dataclass(kw_only=True, eq=False)
class Settings:
    """The options of `BoundedLoss`; the environment variable BOUNDED_LOSS replaces them.

    Args:
        protocol: a preset's name or its `ProtocolConfig`, whose tolerance of the gather counts.
        group: the process group of the replicas; None: the default one.
        collective: `sharded`: each rank averages a part of each bucket, or one rank a small one;
            `server`: rank 0 all.
        mode: `bounded`; `reliable`: no loss; `local`: nothing is sent, to measure the exchange.
        filling: of lost gradients: `error-feedback` (the next step's get them), `zero`, `rescale`.
        broadcast_tolerance: the largest share of a mean that a rank may miss. Its own gradient
            stands there, which is as unbiased, so replicas differ until `resynchronise`.
        rate_bps: of a rank's link, bits per second; math.inf: unpaced. None: a preset of a
            fixed rate gets `bbr`, or is unpaced where all ranks are on this machine.
        queue_bytes: the smallest queue on the way, if known; see `EndpointConfig`.
        interface: this rank's. None: GLOO_SOCKET_IFNAME, or the one that leads to MASTER_ADDR.
        port: a machine's ranks take it and lower ones for control messages, and higher ones for
            data. None: free ones.
        timeout_s: within it all ranks raise when one fails; one that answers may be late by
            half of it. None: the timeout of the process group.
        insecure: lets ranks on several machines exchange without keys.
        chunk_bytes: what a datagram carries: the unit of loss. None: what fits the MTU, and with
            `keep` or a `codec` 1456 at most.
        transfers_in_flight: how many buckets may be under way at once.
        segmentation: see `EndpointConfig`; False where queues are to hold single packets.
        leave_out: for experiments; see `EndpointConfig`.
        late_share: in how many of the last 100 buckets a rank's gradient may be left out, to be
            added to the next step's, because it takes much longer than recent ones.
        min_ranks: the fewest ranks, rank 0 among them, that go on when others are lost; with
            `server` alone. None: all are needed.
        phase: what sets `critical`: `gradient-norm` (DBLP's rule, every ten steps), or a
            `Detector` of `testbed.training.detector`, which sees the mean's norm alone. All
            ranks agree. None: the script does.
        returns: for a rank that was lost, and now comes back (`come_back`).
        scaler: the `torch.amp.GradScaler`, or another with its `get_scale()`, which is read at each
            step's first bucket.

    Raises:
        InputError: one line, the same on all ranks, where one cannot take part or they differ.
        PeerLost: a rank does not come in time.
    """

    protocol: str | ProtocolConfig = field(default="dblp", kw_only=False)
    group: dist.ProcessGroup | None = None
    collective: Collective = field(default="sharded", metadata=_EQUAL)
    mode: Mode = field(default="bounded", metadata=_EQUAL)
    filling: FillingName = field(default="error-feedback", metadata=_EQUAL)
    broadcast_tolerance: float = field(default=0.0, metadata=_EQUAL)
    rate_bps: float | None = None
    queue_bytes: float = math.inf
    interface: str | None = None
    port: int | None = None
    timeout_s: float | None = None
    insecure: bool = field(default=False, metadata=_EQUAL)
    chunk_bytes: int | None = field(default=None, metadata=_EQUAL)
    transfers_in_flight: int = 4
    segmentation: bool = True
    leave_out: LeaveOut | None = None
    late_share: float = field(default=0.0, metadata=_EQUAL)
    min_ranks: int | None = field(default=None, metadata=_EQUAL)
    phase: str | Detector | None = None
    returns: Return | None = None
    scaler: Scaler | None = None
    _environment: ClassVar[Mapping[str, str]] = os.environ

    def __post_init__(self) -> None:
        self.make_torch_hook: Callable[[dist.ProcessGroup], Hook] | None = None  # replaces ours
        self.over_backend = False  # that one
        text = self._environment.get(ENVIRONMENT) or None
        try:
            preset_options = {} if text is None else self._replaced_by(text)
            self._resolve_protocol(**preset_options)
        except (InputError, TypeError) as error:
            raise InputError(
                f"{ENVIRONMENT}: {error}" if text is not None else str(error)
            ) from None
        problem = next(self._problems(), None)
        if problem is not None:
            named = text is not None and problem.partition(" ")[0] in json.loads(text)
            raise InputError(f"{ENVIRONMENT}: {problem}" if named else problem)
        self.detector = GradientNorm() if isinstance(self.phase, str) else self.phase

    def _replaced_by(self, text: str) -> dict[str, Any]:
        """Takes options from the environment; returns those of the protocol's preset."""
        try:
            options = json.loads(text)
        except ValueError:
            options = None
        if not isinstance(options, dict):
            raise InputError(f"is {shown(text)}; valid: a JSON object of arguments")
        self.over_backend = options.get("backend") is not None
        self.make_torch_hook = _torch_hook(options)
        self.protocol = options.pop("protocol", self.protocol)
        own = {option.name: kind for option in fields(self) if (kind := _json_type(option.type))}
        for name in [name for name in own if name in options]:
            setattr(self, name, _checked(name, options.pop(name), own[name]))
        preset_name = self.protocol if isinstance(self.protocol, str) else ""
        of_preset = settings(preset_name) if preset_name in PRESETS else ()
        valid = ["hook", "backend", *own, *of_preset]
        unknown = [key for key in options if key not in valid]
        if unknown and preset_name in PRESETS:  # else the next check says more
            raise InputError(f"{unknown[0]!r} is no option; {one_of(unknown[0], valid)}")
        return options

    def _resolve_protocol(self, **preset_options: Any) -> None:
        protocol = self.protocol
        self.default_control = False  # whether it is our choice, since no rate is known
        if isinstance(protocol, ProtocolConfig):
            if preset_options:
                raise InputError(f"{next(iter(preset_options))} belongs to a preset; none is named")
            config = protocol
        elif isinstance(protocol, str):
            try:
                config = preset(protocol, **preset_options)
                if self.rate_bps is None and config.needs_rate:
                    self.default_control = "congestion_control" not in preset_options
                if self.default_control:
                    config = preset(protocol, congestion_control=_MEASURED, **preset_options)
            except ValueError as error:
                raise InputError(f"protocol: {error}") from None
        else:
            valid = "a preset's name or a ProtocolConfig"
            raise InputError(f"protocol is {shown(protocol)}; valid: {valid}")
        if self.rate_bps is None and config.needs_rate:
            raise InputError(
                f"rate_bps is missing, which the congestion control of {config.name} needs "
                f"({config.congestion_control}); valid: the links' bits per second, or a control "
                f"that measures, such as {_MEASURED}"
            )
        self.protocol_config = config

    def _problems(self) -> Iterator[str]:
        for option in fields(self):
            choices, value = get_args(option.type) or (option.type,), getattr(self, option.name)
            if get_origin(option.type) is Literal and value not in choices:
                yield f"{option.name} is {shown(value)}; {one_of(str(value), choices)}"
            kind, *other = sorted({*choices} - {NoneType}, key=str)
            if kind in _JSON_TYPES and not other and not _is(value, *choices):
                none = ", or None" if NoneType in choices else ""
                yield f"{option.name} is {shown(value)}; valid: {_JSON_TYPES[kind]}{none}"
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            yield f"timeout_s is {self.timeout_s}; valid: seconds, above 0 and finite"
        if not self.queue_bytes > 0:
            yield f"queue_bytes is {self.queue_bytes}; valid: bytes, above 0"
        if not self.link_bps > 0:
            yield f"rate_bps is {self.rate_bps}; valid: bits per second, above 0"
        if self.transfers_in_flight < 1:
            yield f"transfers_in_flight is {self.transfers_in_flight}; valid: 1 or more"
        if self.port is not None and not 1 <= self.port <= 65535:
            yield f"port is {self.port}; valid: 1 to 65535, or None for free ones"
        try:
            if self.chunk_bytes is not None:
                PayloadLayout([("", 1)], self.chunk_bytes, self.protocol_config.codec)
        except ValueError as error:
            yield str(error)
        if self.late_share != 0 and not 1 / WINDOW <= self.late_share <= 1:
            yield f"late_share is {self.late_share}; valid: 0, or {1 / WINDOW} to 1"
        if self.late_share and not self.keeps_residuals:
            yield (
                f"late_share is {self.late_share}, mode {shown(self.mode)} and filling "
                f"{shown(self.filling)}; valid: 0, or a share with mode='bounded' and "
                "filling='error-feedback'"
            )
        if not 0 <= self.broadcast_tolerance < 1:
            yield f"broadcast_tolerance is {self.broadcast_tolerance}; valid: 0, or a share below 1"
        if self.broadcast_tolerance and (self.mode, self.filling) != ("bounded", "rescale"):
            yield (
                f"broadcast_tolerance is {self.broadcast_tolerance}, mode {shown(self.mode)} and "
                f"filling {shown(self.filling)}; valid: 0, or a share with mode='bounded' and "
                "filling='rescale', whose means are unbiased"
            )
        protocol = self.protocol_config
        if self.late_share and protocol.carrier == "tcp":
            yield (
                f"late_share is {self.late_share}; valid: 0 with the protocol {protocol.name}, "
                "which cannot leave out what is late"
            )
        if protocol.compresses and self.over_backend:
            yield (
                f"backend with the protocol {protocol.name!r}, which {protocol.compresses}; valid: "
                "one that sends all, such as none: the hook compresses"
            )
        elif protocol.compresses and self.mode != "local" and not self.keeps_residuals:
            yield (
                f"protocol {protocol.name!r} {protocol.compresses}, with mode {shown(self.mode)} "
                f"and filling {shown(self.filling)}; valid: mode='bounded' and "
                "filling='error-feedback', which add later what does not travel"
            )
        if self.mode == "bounded" and isinstance(protocol.gather, PerLayer):
            yield (
                f"protocol {protocol.name}: it bounds the loss of each layer, and a bucket has no "
                "names of layers; valid: a protocol with one bound, such as dblp"
            )
        if self.min_ranks is not None and (self.min_ranks < 1 or self.collective != "server"):
            yield (
                f"min_ranks is {self.min_ranks} and collective {shown(self.collective)}; valid: "
                "None, or 1 and more with collective='server', where one rank decides for all"
            )
        if not (self.phase in (None, _PHASE) or isinstance(self.phase, Detector)):
            valid = f"{_PHASE}, a Detector of testbed.training, or None"
            yield f"phase is {shown(self.phase)}; valid: {valid}"
        if self.returns is not None and (self.min_ranks is None or self.make_torch_hook):
            yield "returns: valid with min_ranks, as the others have it"
        if not (self.scaler is None or callable(getattr(self.scaler, "get_scale", None))):
            yield f"scaler is {shown(self.scaler)}; valid: a GradScaler, or None"

    @property
    def link_bps(self) -> float:
        return math.inf if self.rate_bps is None else self.rate_bps

    @property
    def keeps_residuals(self) -> bool:
        return self.mode == "bounded" and self.filling == "error-feedback"

    @property
    def filling_in_use(self) -> Filling:
        """The filling of the mean; nothing is missing unless the mode is `bounded`."""
        return FILLINGS.create(self.filling if self.mode == "bounded" else "zero")

    def protocol_between(self, *, one_machine: bool) -> ProtocolConfig:
        """Returns the protocol between ranks that are all on this machine, or not."""
        if not (one_machine and self.default_control):
            return self.protocol_config
        # Inside a machine the transport knows a socket's room: to measure costs more than to send.
        if self.mode == "reliable" and self.leave_out is None:
            return preset("tcp-reno")  # which every kernel has
        return replace(self.protocol_config, congestion_control="fixed")

    def gather_tolerance(self, critical: bool) -> float | StopRuleFactory:
        """Returns when the receiver of gradients may stop. The means are always complete."""
        if self.mode != "bounded":
            return 0.0
        return self.protocol_config.policy(Leg.GATHER).stop_rule(critical)

    def terms(self) -> dict[str, str]:
        """Returns what must be equal on all ranks, in words."""
        return {
            "the version of bounded-loss-testbed": version(),
            "the version of torch": torch.__version__,
            **{f"protocol: {key}": value for key, value in self.protocol_config.describe().items()},
            **{key.name: str(getattr(self, key.name)) for key in fields(self) if key.metadata},
            "phase": "None" if self.detector is None else type(self.detector).__name__,
        }


_assign = Settings.__init__


@wraps(_assign)
def _init(self: Settings, *protocol: Any, **options: Any) -> None:
    names = [option.name for option in fields(Settings)]
    (name,) = protocol[:1] or [options.get("protocol", "dblp")]
    for key in [key for key in options if key not in names]:
        of_preset = isinstance(name, str) and name in PRESETS and key in settings(name)
        own = f"valid: testbed.transport.preset({name!r}, {key}={options[key]!r}) as the protocol"
        raise InputError(f"{key!r} is no option; {own if of_preset else one_of(key, names)}")
    _assign(self, *protocol, **options)


Settings.__init__ = _init  # type: ignore[method-assign]


def check(text: str) -> None:
    """Raises what any `BoundedLoss` would where the environment holds this text."""
    options = json.loads(text)
    if "min_ranks" in options:  # a script may well choose what that needs
        options = {"collective": "server", **options}

    class There(Settings):
        _environment: ClassVar[Mapping[str, str]] = {ENVIRONMENT: json.dumps(options)}

    There()


def require_equal(
    facts: Sequence[Mapping[str, Any]],
    *,
    names: Sequence[int] = (),
    stage: str = "",
    valid: str = "the same on all ranks",
) -> None:
    """InputError, the same line on all ranks, where their facts differ; `names`: their numbers."""
    names = names or range(len(facts))
    for rank, theirs in zip(names, facts, strict=True):
        for key, ours in facts[0].items():
            if theirs.get(key) != ours:
                raise InputError(
                    f"{stage}{key} is {shown(theirs.get(key))} on rank {rank} and {shown(ours)} on "
                    f"rank {names[0]}; valid: {valid}"
                )


def _torch_hook(options: dict[str, Any]) -> Callable[[dist.ProcessGroup], Hook] | None:
    """Takes all that is about a hook of PyTorch's out of the options; None where it is ours."""
    name, backend = options.pop("hook", OURS), options.pop("backend", None)
    if name not in (OURS, *HOOKS):
        raise InputError(f"hook is {shown(name)}; {one_of(str(name), [OURS, *HOOKS])}")
    if not (backend is None or (backend == BACKEND and name in CARRIED)):
        valid = f"{BACKEND}, with {' or '.join(CARRIED)}"
        raise InputError(f"backend is {shown(backend)} with the hook {name}; valid: {valid}")
    if name == OURS:
        return None
    make, defaults = HOOKS[name]
    own = {key: _checked(key, options.pop(key, value), int) for key, value in defaults.items()}
    for key in [key for key in own if own[key] < _LEAST[key]]:
        raise InputError(f"{key} is {own[key]}; valid: {_LEAST[key]} or more")
    if options and backend is None:
        valid = ", ".join(defaults) or "nothing"
        raise InputError(f"the hook {name} has no {next(iter(options))!r}; valid: {valid}")
    return lambda group: make(group, **own)


def _json_type(annotation: Any) -> type | None:
    """Returns the type that an option has in JSON; None where the environment cannot replace it."""
    choices = get_args(annotation) or (annotation,)
    types = [type(choice) if isinstance(choice, str) else choice for choice in choices]
    return next((json_type for json_type in _JSON_TYPES if json_type in types), None)


def _is(value: Any, *types: type) -> bool:
    """Tells whether it is of one of these types; True is no number."""
    numbers: dict[type, type] = {int: Integral, float: Real}
    classes = tuple(numbers.get(choice, choice) for choice in types)
    return isinstance(value, classes) and isinstance(value, bool) == (bool in types)


def _checked(key: str, value: Any, json_type: type) -> Any:
    if _is(value, json_type):
        return value
    raise InputError(f"{key} is {shown(value)}; valid: {_JSON_TYPES[json_type]}")
