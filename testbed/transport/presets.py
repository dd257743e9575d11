"""A protocol, composed of one entry per axis and checked; and presets, named after systems."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from testbed.shared.input_error import InputError, shown
from testbed.shared.registry import Registry, one_of
from testbed.transport.chunk_energy import BoundedEnergy
from testbed.transport.congestion import CONGESTION_CONTROLS
from testbed.transport.errors import check_number
from testbed.transport.layout import Leg
from testbed.transport.order import MARKS, NONE, ORDERS, ByEnergy
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
}


_BY_ITSELF = "kernel TCP has its own way of repair and order, and no marks: leave it out"
# By carrier, which settings say nothing there, and why.
_SENSELESS: Mapping[str, Mapping[str, str]] = {
    "tcp": {
        **dict.fromkeys(("repair", "order", "marks"), _BY_ITSELF),
        "control": "it hurries the control messages of our own transport: leave it out",
    },
    "udp": {
        "keep": "our own transport's receivers decide what to give up: leave it out, or choose the "
        "carrier tcp",
        "coding": "our own transport sends chunks as they are: leave it out, or choose the carrier "
        "tcp",
    },
}
_CHOICES = {
    "carrier": ("udp", "tcp"),
    "control": ("tcp", "hedged"),
    "coding": ("plain", "two-values"),
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
            `hedged`: so, too, and while that is slow also in datagrams; see `hedging`.
        marks: which chunks switches are to drop last, where queues know that
            (`priority_queue_bytes` in a lab's topology); `udp` only.
        keep: the part of a payload's chunks that is sent at all, those with the most energy; `tcp`
            only.
        coding: how chunks go; `tcp` only. `plain`: as they are. `two-values`: as a bit for each
            element, of payloads with at most two values in each chunk.

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
    control: Literal["tcp", "hedged"] = "tcp"
    marks: str = NONE
    keep: float = 1.0
    coding: Literal["plain", "two-values"] = "plain"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"name is {shown(self.name)}; valid: a text")
        object.__setattr__(self, "keep", _part("keep", self.keep))
        for key, valid in _CHOICES.items():
            if getattr(self, key) not in valid:
                value = shown(getattr(self, key))
                raise ValueError(f"{key} is {value}; valid: {', '.join(valid)}")
        if self.coding != "plain" and self.keep != 1:
            raise ValueError(f"keep is {self.keep}; coding {self.coding} sends all chunks: keep: 1")
        for leg in Leg:
            key = leg.name.lower()
            with _named(key):
                object.__setattr__(self, key, as_policy(getattr(self, key)))
        for key, why in _SENSELESS[self.carrier].items():
            if (value := getattr(self, key)) != type(self).__dataclass_fields__[key].default:
                raise ValueError(f"{key} is {shown(value)}; {why}")
        if self.carrier == "tcp":
            self._check_tcp()
        else:
            self._check_udp()

    def _check_tcp(self) -> None:
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
        if self.coding != "plain":
            return "sends two values of each chunk"
        return "" if self.keep == 1 else f"keeps {self.keep:g} of the chunks"

    @property
    def measures(self) -> bool:
        """The congestion control measures the path; `udp` only."""
        return CONGESTION_CONTROLS.create(self.congestion_control, **_TYPICAL_LINK).measures

    def describe(self) -> dict[str, str]:
        """The configuration as texts, from which an equal one can be built."""
        # Runs were described without these, and are told apart by that.
        unsaid = {"keep": "1.0", "control": "tcp", "coding": "plain", "marks": NONE}
        texts = {entry.name: str(getattr(self, entry.name)) for entry in fields(self)}
        return {name: text for name, text in texts.items() if unsaid.get(name) != text}


def _lossy(
    name: str, policy: TolerancePolicy, settings: Mapping[str, Any], **axes: str
) -> ProtocolConfig:
    """A protocol with the same tolerance on both legs; the user's settings take precedence."""
    return ProtocolConfig(
        **{"name": name, "gather": policy, "broadcast": policy, **axes, **settings}
    )


def _dblp(*, low: float = 0.008, high: float = 0.408, **settings: Any) -> ProtocolConfig:
    """DBLP with its tolerances for EfficientNet-B0 (arXiv 2605.01989, Table I), on both legs."""
    return _lossy("dblp", Phased(low=low, high=high), settings)


def _dblp_as_published(
    *, low: float = 0.008, high: float = 0.408, **settings: Any
) -> ProtocolConfig:
    """DBLP with the price of a pass of its authors' code (August 2025); see the repair `passes`."""
    price = "walk_s_per_chunk=2e-06,poll_every=100,poll_s=0.001,overlaps=false"
    priced = {"repair": f"passes:{price}"}
    return _dblp(low=low, high=high, **{"name": "dblp-as-published", **priced, **settings})


def _dblp_stream(*, low: float = 0.008, high: float = 0.408, **settings: Any) -> ProtocolConfig:
    """Ours: DBLP's schedule, streaming repair, and a shuffled order, which fills without bias."""
    policy = Phased(low=low, high=high)
    return _lossy("dblp-stream", policy, settings, repair="streaming", order="shuffled")


def _fixed_low(*, tolerance: float = 0.008, **settings: Any) -> ProtocolConfig:
    """The paper's baseline: the same transport with P_low all the time."""
    return _lossy("fixed-low", Fixed(tolerance), settings)


def _fixed_high(*, tolerance: float = 0.408, **settings: Any) -> ProtocolConfig:
    """A control that the paper lacks: the same transport with P_high all the time."""
    return _lossy("fixed-high", Fixed(tolerance), settings)


def _none(**settings: Any) -> ProtocolConfig:
    """The same transport without tolerance, hence reliable: the reference for tolerating loss."""
    return _lossy("none", Fixed(0), settings)


def _mlt(*, tolerance: float = 0.1, **settings: Any) -> ProtocolConfig:
    """MLT-style, end hosts only (NSDI 2024): one bound per tensor, its evaluation's; TIMELY."""
    return _lossy("mlt", PerLayer(default=tolerance), settings, congestion_control="timely")


def _mlt_marked(*, tolerance: float = 0.1, **settings: Any) -> ProtocolConfig:
    """MLT-style with its marks, but neither ECN nor priority of front layers."""
    marked = {"name": "mlt-marked", "marks": "layer-and-magnitude"}
    return _mlt(tolerance=tolerance, **{**marked, **settings})


def _per_layer(
    *,
    default: float = 0.1,
    first: float | None = None,
    last: float | None = 0.036,
    tensors: str | Mapping[str, float] = "",
    **settings: Any,
) -> ProtocolConfig:
    """PLOT's idea (IEEE TNSM 2024), a bound per layer, with bounds that are our assumption.

    Every layer has MLT's 10 % except the last, which has 0.4 / 1.1 of it, the ratio of back to
    front layers in DLCP (arXiv 2008.08445). Repair and rate control are DBLP's.
    """
    return _lossy("per-layer", PerLayer(default, first, last, tensors), settings)


def _plot(
    *, tensors: str | Mapping[str, float] = "", default: float = 0.0, **settings: Any
) -> ProtocolConfig:
    """PLOT-style (IEEE TNSM 2024): a bound per layer, as a profile of the training measured it.

    `./lab bench layers` measures `tensors`; it may be the name of its file. A profile loses chunks
    at random and in the gather alone, so chunks are shuffled here, and the broadcast is whole.
    """
    bounds = PerLayer(default, tensors=tensors)
    axes: dict[str, Any] = {"order": "shuffled", "broadcast": Fixed(0)}
    return _lossy("plot", bounds, {**axes, **settings})


def _ltp(
    *,
    tolerance: float = 0.1,
    deadline_s: float = 0.1,
    must: str = "",
    patience: float | None = None,
    **settings: Any,
) -> ProtocolConfig:
    """LTP-style (arXiv 2305.04279): Early Close on the gather leg, a reliable broadcast.

    LTP's fraction, deadline and critical packets are not known to us: the values are assumptions.
    """
    return ProtocolConfig(
        **{
            "name": "ltp",
            "gather": EarlyClose(tolerance, deadline_s, must, patience),
            "broadcast": Fixed(0),
            "repair": "selective",
            "congestion_control": "ltp",
            **settings,
        }
    )


def _apnet(*, tolerance: float = 0.1, quiet_s: float = 0.02, **settings: Any) -> ProtocolConfig:
    """APNet'19-style (Xia et al.): quick losses are repaired, slow ones given up within a bound.

    10 % is the lower end of what its abstract calls harmless. What is slow is our assumption: a
    round trip through a full queue of 150 kB takes 12 ms at 100 Mbit/s.
    """
    return _lossy("apnet", QuickLossOnly(tolerance, quiet_s), settings, repair="selective")


def _optireduce(
    *, warm_up: int = 20, quantile: float = 0.95, wait: float = 0.1, **settings: Any
) -> ProtocolConfig:
    """OptiReduce-style (NSDI 2025): each chunk goes once, and time alone ends a transfer.

    Its randomised Hadamard transform is the filling `hadamard`.
    """
    policy = TimeBound(warm_up=warm_up, quantile=quantile, wait=wait)
    return _lossy("optireduce", policy, settings, repair="once")


def _bounded_energy(
    *,
    floor: float = 0.05,
    share: float = 0.95,
    at_most: float = 0.25,
    patience: float = 1.2,
    within_rounds: int = 61,
    per: Literal["payload", "tensor"] = "payload",
    **settings: Any,
) -> ProtocolConfig:
    """Ours: the most energetic chunks first, until there is enough energy or it is late."""
    # It names the key itself where one is wrong.
    ByEnergy(floor=floor, within_rounds=within_rounds, per=per)
    policy = BoundedEnergy(share=share, patience=patience, at_most=at_most)
    gather = {"gather": replace(policy, floor=floor)}
    order = f"floor={floor!r},within_rounds={within_rounds},share={share!r}"
    if at_most != 1:
        order += f",at_most={at_most!r}"
    if per != "payload":  # without it, runs have the keys that they had before there was this
        order += f",per={per}"
    axes = {
        "order": f"by-energy:{order}",
        "repair": "streaming:lost_first=true",
        "congestion_control": "compensated",
        "control": "hedged",
    }
    return _lossy("bounded-energy", policy, {**gather, **settings}, **axes)


def _tcp(*, congestion_control: str = "cubic", **settings: Any) -> ProtocolConfig:
    """The payload over one plain kernel TCP connection per peer."""
    axes = {"name": "tcp", "carrier": "tcp", "congestion_control": congestion_control}
    return ProtocolConfig(**{**axes, **settings})


def _top_k(*, keep: float = 0.1, **settings: Any) -> ProtocolConfig:
    """Compression in place of tolerance: the most energetic chunks over kernel TCP, the rest owed.

    Top-k sparsification with error feedback (Stich, Cordonnier and Jaggi, NeurIPS 2018), in blocks
    of a chunk. Published ratios are of a tenth to a thousandth.
    """
    return _tcp(**{"name": "top-k", "keep": keep, **settings})


def _one_bit(**settings: Any) -> ProtocolConfig:
    """Compression in place of tolerance: a bit for each element, over kernel TCP.

    1-bit SGD (Seide et al., Interspeech 2014): an element is sent as the mean of the positive or of
    the other ones, here of a chunk, and the filling `signs` owes the error on both legs.
    """
    return _tcp(**{"name": "one-bit", "coding": "two-values", **settings})


PRESETS: Mapping[str, Callable[..., ProtocolConfig]] = {
    "dblp": _dblp,
    "dblp-stream": _dblp_stream,
    "fixed-low": _fixed_low,
    "fixed-high": _fixed_high,
    "dblp-as-published": _dblp_as_published,
    "none": _none,
    "mlt": _mlt,
    "mlt-marked": _mlt_marked,
    "per-layer": _per_layer,
    "plot": _plot,
    "ltp": _ltp,
    "apnet": _apnet,
    "optireduce": _optireduce,
    "bounded-energy": _bounded_energy,
    "top-k": _top_k,
    "one-bit": _one_bit,
    "tcp": _tcp,
}
_FIELDS = [field.name for field in fields(ProtocolConfig)]


def parameters(name: str) -> list[str]:
    """The settings that the preset `name` has beside the fields of ProtocolConfig."""
    keywords = inspect.signature(PRESETS[name]).parameters
    return [key for key in keywords if key not in (*_FIELDS, "settings")]


def settings(name: str) -> list[str]:
    """The settings of the preset `name`; ValueError, listing the presets, for an unknown name."""
    carrier, _, algorithm = name.partition("-")
    if name not in PRESETS and not (carrier == "tcp" and algorithm):
        raise ValueError(f"unknown protocol {name!r}; {one_of(name, PRESETS)}")
    return [*parameters(name if name in PRESETS else "tcp"), *_FIELDS]


def preset(name: str, /, **overrides: Any) -> ProtocolConfig:
    """The published protocol called `name`, changed by the preset's parameters or any field.

    `tcp-cubic`, `tcp-bbr` and so on are `tcp` with that congestion control. Raises ValueError
    listing what is valid.
    """
    valid = settings(name)
    for key in overrides:
        if key not in valid:
            raise ValueError(f"protocol {name!r} has no setting {key!r}; valid: {', '.join(valid)}")
    if name not in PRESETS:
        algorithm = name.partition("-")[2]
        return _tcp(**{"name": name, "congestion_control": algorithm, **overrides})
    return PRESETS[name](**overrides)
