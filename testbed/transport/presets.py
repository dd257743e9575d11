"""A protocol, composed of one entry per axis and checked; and presets, named after systems."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from testbed.shared.input_error import InputError, shown
from testbed.shared.registry import Registry, one_of
from testbed.transport.chunk_energy import BoundedEnergy
from testbed.transport.codec import CODECS
from testbed.transport.congestion import CONGESTION_CONTROLS
from testbed.transport.errors import check_number
from testbed.transport.layout import Leg
from testbed.transport.order import MARKS, NONE, ORDERS, ByEnergy, Per
from testbed.transport.repair import REPAIRS
from testbed.transport.tolerance import (
    EarlyClose,
    Fixed,
    PerLayer,
    Phased,
    QuickLossOnly,
    TimeBound,
    TolerancePolicy,
)

_BUILT_IN = (Fixed, Phased, PerLayer, EarlyClose, QuickLossOnly, BoundedEnergy, TimeBound)
POLICIES: Registry[TolerancePolicy] = Registry(
    "tolerance policy",
    {policy.name: policy for policy in _BUILT_IN},
    own="Tolerance",
    base=TolerancePolicy,
)


def as_policy(value: TolerancePolicy | float | str | Mapping[str, Any]) -> TolerancePolicy:
    """Returns the policy of a number (a fixed tolerance), a text or a mapping; else ValueError.

    `fixed:tolerance=0.008`, or {"policy": "phased", "low": 0.008, "high": 0.408}, where `name` may
    stand in place of `policy`.
    """
    if isinstance(value, TolerancePolicy):
        return value
    if isinstance(value, Mapping):
        options = dict(value)
        name = options.pop("policy", None) or options.pop("name", None)
        if not isinstance(name, str):
            raise ValueError(f"a tolerance policy needs the key 'policy': {', '.join(POLICIES)}")
        if name in POLICIES:
            return POLICIES.build(name, options)
        value = {"name": name, **options}
    if not isinstance(value, str | Mapping):
        return Fixed(value)
    text = POLICIES.text(value)
    policy = POLICIES.create(text)
    if POLICIES.parse(text)[0] not in POLICIES:
        # A user's class need not know how to describe itself; `object`, since it may be frozen.
        object.__setattr__(policy, "own_text", text)
        if str(policy) != text:
            raise InputError(f"{text}: {type(policy).__name__} must not define __str__")
    return policy


# The registry behind each setting whose value names an entry of one.
REGISTRIES: Mapping[str, Registry[Any]] = {
    "gather": POLICIES,
    "broadcast": POLICIES,
    "repair": REPAIRS,
    "order": ORDERS,
    "marks": MARKS,
    "congestion_control": CONGESTION_CONTROLS,
    "codec": CODECS,
}


_BY_ITSELF = "kernel TCP has its own way of repair and order, and no marks: leave it out"
# What says nothing with the carrier `tcp`, and why.
_SENSELESS: Mapping[str, str] = {
    **dict.fromkeys(("repair", "order", "marks"), _BY_ITSELF),
    "control": "it hurries the control messages of our own transport: leave it out",
}
_CHOICES = {
    "carrier": ("udp", "tcp"),
    "control": ("tcp", "datagrams"),
}
_TYPICAL_LINK: Mapping[str, Any] = {"rate_bps": 1e6, "datagram_bytes": 1472}


@contextmanager
def _named(key: str) -> Iterator[None]:
    """Puts the key in front of what is wrong with its value."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InputError(f"{key}: {error}") from None


def _part(key: str, value: Any) -> float:
    """A number above 0 and up to 1, or the text that `ProtocolConfig.describe` makes of it."""
    with suppress(ValueError):
        value = float(value) if isinstance(value, str) else value
    check_number(key, value, above=0, most=1)
    return float(value)


# The congestion controls that measure no rate: somebody must know one.
NEED_RATE = ("fixed", "compensated")


@dataclass(frozen=True, kw_only=True)
class ProtocolConfig:
    """One protocol, completely described and checked.

    Attributes:
        name: its name in reports.
        carrier: `udp` for our own transport, `tcp` for the kernel's.
        gather, broadcast: how much each leg's receivers may give up, in any form that
            `as_policy` takes. Zero makes the leg reliable.
        repair: how lost chunks are sent again; `udp` only.
        order: the order in which chunks are sent; `udp` only.
        congestion_control: for `udp` an entry of CONGESTION_CONTROLS with its options; for `tcp`
            the kernel's name of an algorithm, which the kernel checks when the endpoint opens.
        control: how control messages go; `udp` only. `tcp`: over a connection of kernel TCP.
            `datagrams`: those of transfers in datagrams that are repeated; see `control_datagrams`.
        marks: which chunks switches are to drop last, where queues know that
            (`priority_queue_bytes` in a lab's topology); `udp` only.
        keep: the part of a payload's chunks that is sent at all, those with the most energy.
            Reports count the others as lost. A tolerance is of those that are sent, but a bound of
            each tensor is of all its chunks.
        codec: an entry of CODECS: how chunks hold the values. The layout has the same.

    For `udp` the constructor takes repair, order, marks and congestion control as texts,
    `NAME:key=value,...`, or as mappings with the key `name`, and keeps texts.
    """

    name: str
    carrier: Literal["udp", "tcp"] = "udp"
    gather: TolerancePolicy = Fixed(0)  # noqa: RUF009 - immutable
    broadcast: TolerancePolicy = Fixed(0)  # noqa: RUF009 - immutable
    repair: str = "passes"
    order: str = "in-order"
    congestion_control: str = "fixed"
    control: Literal["tcp", "datagrams"] = "tcp"
    marks: str = NONE
    keep: float = 1.0
    codec: str = "float32"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"name is {shown(self.name)}; valid: a text")
        object.__setattr__(self, "keep", _part("keep", self.keep))
        for key, valid in _CHOICES.items():
            if getattr(self, key) not in valid:
                value = shown(getattr(self, key))
                raise ValueError(f"{key} is {value}; valid: {', '.join(valid)}")
        with _named("codec"):
            object.__setattr__(self, "codec", CODECS.text(self.codec))
            CODECS.create(self.codec)
        for leg in Leg:
            key = leg.name.lower()
            with _named(key):
                object.__setattr__(self, key, as_policy(getattr(self, key)))
        if self.carrier == "tcp":
            self._check_tcp()
        else:
            self._check_udp()

    def _check_tcp(self) -> None:
        for key, why in _SENSELESS.items():
            if (value := getattr(self, key)) != type(self).__dataclass_fields__[key].default:
                raise ValueError(f"{key} is {shown(value)}; {why}")
        for leg in Leg:
            if self.policy(leg) != Fixed(0):
                key = leg.name.lower()
                raise ValueError(f"{key}: kernel TCP is reliable; its tolerances must be 0")
        name: Any = self.congestion_control
        if isinstance(name, Mapping) and set(name) == {"name"}:
            name = name["name"]
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(
                f"congestion_control is {shown(name)}; "
                "valid: the kernel's name of an algorithm, such as cubic, without options"
            )
        object.__setattr__(self, "congestion_control", name)

    def _check_udp(self) -> None:
        # Building each part once finds unknown names and options before a socket is opened.
        supplied = {"order": {"seed": 0}, "congestion_control": _TYPICAL_LINK}
        for axis in ("repair", "order", "marks", "congestion_control"):
            with _named(axis):
                text = REGISTRIES[axis].text(getattr(self, axis))
                object.__setattr__(self, axis, text)
                REGISTRIES[axis].create(text, **supplied.get(axis, {}))
        sends_energy = ORDERS.create(self.order, seed=0).sends_energy
        if sends_energy and self.marks != NONE:
            raise ValueError(
                f"marks is {shown(self.marks)}, and {self.order.partition(':')[0]} tells the "
                f"receiver of an order that marks would change; valid: {NONE}, or another order"
            )
        for leg in Leg:
            if self.policy(leg).needs_energy and not sends_energy:
                policy = str(self.policy(leg)).partition(":")[0]
                raise ValueError(
                    f"{leg.name.lower()}: {policy} needs an order that sends the energy of "
                    f"chunks, and {self.order} does not; valid: by-energy"
                )

    @property
    def needs_rate(self) -> bool:
        """The user must set the rate at which it sends."""
        return self.carrier == "udp" and self.congestion_control.partition(":")[0] in NEED_RATE

    def policy(self, leg: Leg) -> TolerancePolicy:
        return self.gather if leg is Leg.GATHER else self.broadcast

    @property
    def compresses(self) -> str:
        """Its compression of payloads, in words; none where they travel as they are."""
        kept = "" if self.keep == 1 else f"keeps {self.keep:g} of the chunks"
        coded = "" if self.codec == "float32" else f"sends {self.codec}"
        return " and ".join(filter(None, (kept, coded)))

    @property
    def measures(self) -> bool:
        """The congestion control measures the path; `udp` only."""
        return CONGESTION_CONTROLS.create(self.congestion_control, **_TYPICAL_LINK).measures

    def describe(self) -> dict[str, str]:
        """The configuration as texts, from which an equal one can be built."""
        # Runs were described without these, and are told apart by that.
        unsaid = {"keep": "1.0", "control": "tcp", "codec": "float32", "marks": NONE}
        texts = {entry.name: str(getattr(self, entry.name)) for entry in fields(self)}
        return {name: text for name, text in texts.items() if unsaid.get(name) != text}


@dataclass(frozen=True)
class Preset:
    """A protocol after a published one, or of ours: its fields of ProtocolConfig.

    What is callable is called with the options, which a user may set, too; `policy` is both legs'.
    """

    about: str
    policy: Callable[..., TolerancePolicy] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] | Callable[..., Mapping[str, Any]] = field(default_factory=dict)


def _mlt(tolerance: float) -> PerLayer:
    return PerLayer(tolerance)


def _by_energy(
    *, floor: float, within_rounds: int, per: Per, at_most: float, share: float, patience: float
) -> dict[str, Any]:
    # It names the key itself where one is wrong.
    ByEnergy(floor=floor, within_rounds=within_rounds, per=per)
    order = f"by-energy:floor={floor!r},within_rounds={within_rounds},share={share!r}"
    if at_most != 1:
        order += f",at_most={at_most!r}"
    if per != "payload":  # without it, runs have the keys that they had before there was this
        order += f",per={per}"
    policy = BoundedEnergy(share=share, patience=patience, at_most=at_most)
    return {
        "gather": replace(policy, floor=floor),
        "broadcast": policy,
        "order": order,
        "repair": "streaming:lost_first=true",
        "congestion_control": "compensated",
        "control": "datagrams",
    }


def _compressed(**options: Any) -> dict[str, Any]:
    return {**_by_energy(**options), "broadcast": Fixed(0), "keep": 0.5, "codec": "int4"}


_ENERGY = {
    "floor": 0.05,
    "share": 0.95,
    "at_most": 0.25,
    "patience": 1.2,
    "within_rounds": 61,
    "per": "payload",
}
_DBLP = {"low": 0.008, "high": 0.408}
_TCP = {"carrier": "tcp", "congestion_control": "cubic"}
_PRICE = "walk_s_per_chunk=2e-06,poll_every=100,poll_s=0.001,overlaps=false"
# docs/assumptions.md says what their authors do not publish, and what we assume instead.
PRESETS: Mapping[str, Preset] = {
    "dblp": Preset(
        "DBLP with its tolerances for EfficientNet-B0 (arXiv 2605.01989, Table I), on both legs.",
        Phased,
        _DBLP,
    ),
    "dblp-stream": Preset(
        "Ours: DBLP's schedule, streaming repair, and a shuffled order, which fills without bias.",
        Phased,
        _DBLP,
        {"repair": "streaming", "order": "shuffled"},
    ),
    "fixed-low": Preset(
        "The paper's baseline: the same transport with P_low all the time.",
        Fixed,
        {"tolerance": 0.008},
    ),
    "fixed-high": Preset(
        "A control that the paper lacks: the same transport with P_high all the time.",
        Fixed,
        {"tolerance": 0.408},
    ),
    "dblp-as-published": Preset(
        "DBLP with the price of a pass of its authors' code (August 2025); see repair `passes`.",
        Phased,
        _DBLP,
        {"repair": f"passes:{_PRICE}"},
    ),
    "none": Preset(
        "The same transport without tolerance, hence reliable: the reference for tolerating loss."
    ),
    "mlt": Preset(
        "MLT-style, end hosts only (NSDI 2024): one bound per tensor, its evaluation's; TIMELY.",
        _mlt,
        {"tolerance": 0.1},
        {"congestion_control": "timely"},
    ),
    "mlt-marked": Preset(
        "MLT-style with its marks, but neither ECN nor priority of front layers.",
        _mlt,
        {"tolerance": 0.1},
        {"congestion_control": "timely", "marks": "layer-and-magnitude"},
    ),
    # All but the last layer have MLT's 10 %; that has 0.4 / 1.1 of it, as in DLCP (arXiv
    # 2008.08445) back layers have of front layers.
    "per-layer": Preset(
        "PLOT's idea (IEEE TNSM 2024), a bound per layer, with bounds that are our assumption.",
        PerLayer,
        {"default": 0.1, "first": None, "last": 0.036, "tensors": ""},
    ),
    # `./lab bench layers` measures `tensors`, or writes a file to name here. It loses chunks at
    # random and in the gather alone, so chunks are shuffled, and the broadcast is whole.
    "plot": Preset(
        "PLOT-style (IEEE TNSM 2024): a bound per layer, as a profile of the training measured it.",
        PerLayer,
        {"tensors": "", "default": 0.0},
        {"order": "shuffled", "broadcast": Fixed(0)},
    ),
    "ltp": Preset(
        "LTP-style (arXiv 2305.04279): Early Close on the gather leg, a reliable broadcast.",
        EarlyClose,
        {"tolerance": 0.1, "deadline_s": 0.1, "must": "", "patience": None},
        {"broadcast": Fixed(0), "repair": "selective", "congestion_control": "ltp"},
    ),
    # 10 % is the lower end of what its abstract calls harmless. A round trip through a full queue
    # of 150 kB takes 12 ms at 100 Mbit/s.
    "apnet": Preset(
        "APNet'19-style (Xia et al.): quick losses are repaired, slow ones given up, to a bound.",
        QuickLossOnly,
        {"tolerance": 0.1, "quiet_s": 0.02},
        {"repair": "selective"},
    ),
    "optireduce": Preset(  # its randomised Hadamard transform is the filling `hadamard`
        "OptiReduce-style (NSDI 2025): each chunk goes once, and time alone ends a transfer.",
        TimeBound,
        {"warm_up": 20, "quantile": 0.95, "wait": 0.1},
        {"repair": "once"},
    ),
    "bounded-energy": Preset(
        "Ours: the most energetic chunks first, until there is enough energy or it is late.",
        None,
        _ENERGY,
        _by_energy,
    ),
    # As DoubleSqueeze (Tang et al., ICML 2019) it compresses both ways with error feedback.
    "compressed": Preset(
        "Ours: half of the chunks in 4 bits, both ways, and a bound on what a gather may lose.",
        None,
        {**_ENERGY, "at_most": 1.0},
        _compressed,
    ),
    # Top-k sparsification with error feedback (Stich, Cordonnier and Jaggi, NeurIPS 2018), in
    # blocks of a chunk. Published ratios are of a tenth to a thousandth.
    "top-k": Preset(
        "Compression in place of tolerance: the most energetic chunks over kernel TCP, "
        "the rest owed.",
        settings={**_TCP, "keep": 0.1},
    ),
    # 1-bit SGD (Seide et al., Interspeech 2014): an element is sent as the mean of the positive or
    # of the other ones, here of a group, and the filling `error-feedback` owes the error on both
    # legs.
    "one-bit": Preset(
        "Compression in place of tolerance: a bit for each element, over kernel TCP.",
        settings={**_TCP, "codec": "one-bit"},
    ),
    "tcp": Preset("The payload over one plain kernel TCP connection per peer.", settings=_TCP),
}
_FIELDS = [entry.name for entry in fields(ProtocolConfig)]


def settings(name: str) -> list[str]:
    """The settings of the preset `name`; ValueError, listing the presets, for an unknown name."""
    return [*_chosen(name).options, *_FIELDS]


def _chosen(name: str) -> Preset:
    """Returns the preset; `tcp-ALGORITHM` is `tcp` with that congestion control."""
    carrier, _, algorithm = name.partition("-")
    if name in PRESETS:
        return PRESETS[name]
    if carrier == "tcp" and algorithm:
        return replace(PRESETS["tcp"], settings={**_TCP, "congestion_control": algorithm})
    raise ValueError(f"unknown protocol {name!r}; {one_of(name, PRESETS)}")


def preset(name: str, /, **overrides: Any) -> ProtocolConfig:
    """The published protocol called `name`, changed by the preset's options or any field.

    `tcp-cubic`, `tcp-bbr` and so on are `tcp` with that congestion control. Raises ValueError
    listing what is valid.
    """
    valid = settings(name)
    for key in overrides:
        if key not in valid:
            raise ValueError(f"protocol {name!r} has no setting {key!r}; valid: {', '.join(valid)}")
    chosen = _chosen(name)
    options = {key: overrides.pop(key, default) for key, default in chosen.options.items()}
    fixed = chosen.settings(**options) if callable(chosen.settings) else chosen.settings
    legs = {}
    if chosen.policy is not None:
        legs = dict.fromkeys(("gather", "broadcast"), chosen.policy(**options))
    return ProtocolConfig(**{"name": name, **legs, **fixed, **overrides})
