"""A protocol, composed of one entry per axis, and checked."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal

from testbed.shared.input_error import InputError, shown
from testbed.shared.registry import Registry
from testbed.transport.core.layout import Leg
from testbed.transport.core.tolerance import TolerancePolicy
from testbed.transport.policies.congestion import CONGESTION_CONTROLS
from testbed.transport.policies.order import MARKS, NONE, ORDERS
from testbed.transport.policies.repair import REPAIRS
from testbed.transport.policies.tolerance import POLICIES, Fixed, as_policy

# The registry behind each setting whose value names an entry of one.
REGISTRIES: Mapping[str, Registry[Any]] = {
    "gather": POLICIES,
    "broadcast": POLICIES,
    "repair": REPAIRS,
    "order": ORDERS,
    "marks": MARKS,
    "congestion_control": CONGESTION_CONTROLS,
}


# What kernel TCP does by itself, and what stands there when a configuration does not name it.
_OF_UDP = {"repair": "passes", "order": "in-order", "marks": NONE}
_CONTROLS = ("tcp", "hedged")
_CODINGS = ("plain", "two-values")
_TYPICAL_LINK: Mapping[str, Any] = {"rate_bps": 1e6, "datagram_bytes": 1472}


@contextmanager
def _named(key: str) -> Iterator[None]:
    """Puts the key in front of what is wrong with its value."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InputError(f"{key}: {error}") from None


def _part(key: str, given: Any) -> float:
    """A number above 0 and up to 1, or the text that `ProtocolConfig.describe` makes of it."""
    try:
        number = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number <= 1:
        raise ValueError(f"{key} is {shown(given)}; valid: above 0, up to 1")
    return number


# The congestion controls that measure no rate: somebody must know one.
NEED_RATE = ("fixed", "compensated")


@dataclass(frozen=True, kw_only=True)
class ProtocolConfig:
    """One protocol, completely described and checked.

    Attributes:
        name: its name in reports.
        carrier: `udp` for our own transport, `tcp` for the kernel's.
        gather, broadcast: how much each leg's receivers may give up, in any form that
            `tolerance.as_policy` takes. Zero makes the leg reliable.
        repair: how lost chunks are sent again; `udp` only.
        order: the order in which chunks are sent; `udp` only.
        congestion_control: for `udp` an entry of CONGESTION_CONTROLS with its options; for `tcp`
            the kernel's name of an algorithm, which the kernel checks when the endpoint opens.
        control: how control messages go; `udp` only. `tcp`: over a connection of kernel TCP.
            `hedged`: so, too, and while that is slow also in datagrams; see `core.hedging`.
        marks: which chunks are marked as those that switches are to drop last, and the others as
            those to drop first; `udp` only. Queues that know the marks: `priority_queue_bytes` in a
            lab's topology.
        keep: the part of a payload's chunks that is sent at all, those with the most energy; `tcp`
            only. It holds for all transfers.
        coding: how chunks go; `tcp` only. `plain`: as they are. `two-values`: as a bit for each
            element, which takes payloads with two values in each chunk at most, and no other.

    For `udp` the constructor takes repair, order, marks and congestion control as texts,
    `NAME:key=value,...`, or as mappings with the key `name`, and keeps texts.
    """

    name: str
    carrier: Literal["udp", "tcp"] = "udp"
    gather: TolerancePolicy = Fixed(0)  # noqa: RUF009 - immutable
    broadcast: TolerancePolicy = Fixed(0)  # noqa: RUF009 - immutable
    repair: str = _OF_UDP["repair"]
    order: str = _OF_UDP["order"]
    congestion_control: str = "fixed"
    control: Literal["tcp", "hedged"] = "tcp"
    marks: str = _OF_UDP["marks"]
    keep: float = 1.0
    coding: Literal["plain", "two-values"] = "plain"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"name is {shown(self.name)}; valid: a text")
        object.__setattr__(self, "keep", _part("keep", self.keep))
        if self.control not in _CONTROLS:
            raise ValueError(f"control is {shown(self.control)}; valid: {', '.join(_CONTROLS)}")
        if self.coding not in _CODINGS:
            raise ValueError(f"coding is {shown(self.coding)}; valid: {', '.join(_CODINGS)}")
        if self.coding != "plain" and self.keep != 1:
            raise ValueError(f"keep is {self.keep}; coding {self.coding} sends all chunks: keep: 1")
        for leg in Leg:
            key = leg.name.lower()
            with _named(key):
                object.__setattr__(self, key, as_policy(getattr(self, key)))
        if self.carrier == "tcp":
            for leg in Leg:
                if self.policy(leg) != Fixed(0):
                    key = leg.name.lower()
                    raise ValueError(f"{key}: kernel TCP is reliable; its tolerances must be 0")
            for axis, default in _OF_UDP.items():
                if getattr(self, axis) != default:
                    raise ValueError(
                        f"{axis} is {shown(getattr(self, axis))}; "
                        "kernel TCP has its own way of repair and order, and no marks: leave it out"
                    )
            if self.control != "tcp":
                raise ValueError(
                    f"control is {self.control}; it hurries the control messages of our own "
                    "transport: leave it out"
                )
            name: Any = self.congestion_control
            if isinstance(name, Mapping) and set(name) == {"name"}:
                name = name["name"]
            if not (isinstance(name, str) and name.isidentifier()):
                raise ValueError(
                    f"congestion_control is {shown(name)}; "
                    "valid: the kernel's name of an algorithm, such as cubic, without options"
                )
            object.__setattr__(self, "congestion_control", name)
            return
        if self.carrier != "udp":
            raise ValueError(f"carrier is {shown(self.carrier)}; valid: udp, tcp")
        if self.keep != 1:
            raise ValueError(
                f"keep is {self.keep}; our own transport's receivers decide what to give up: leave "
                "it out, or choose the carrier tcp"
            )
        if self.coding != "plain":
            raise ValueError(
                f"coding is {self.coding}; our own transport sends chunks as they are: leave it "
                "out, or choose the carrier tcp"
            )
        # Building each part once finds unknown names and options before a socket is opened.
        given = {"order": {"seed": 0}, "congestion_control": _TYPICAL_LINK}
        for axis in (*_OF_UDP, "congestion_control"):
            with _named(axis):
                text = REGISTRIES[axis].text(getattr(self, axis))
                object.__setattr__(self, axis, text)
                REGISTRIES[axis].create(text, **given.get(axis, {}))
        tells_worth = ORDERS.create(self.order, seed=0).tells_worth
        if tells_worth and self.marks != NONE:
            raise ValueError(
                f"marks is {shown(self.marks)}, and {self.order.partition(':')[0]} tells the "
                f"receiver of an order that marks would change; valid: {NONE}, or another order"
            )
        if not tells_worth:
            for leg in Leg:
                if self.policy(leg).needs_worth:
                    policy = str(self.policy(leg)).partition(":")[0]
                    raise ValueError(
                        f"{leg.name.lower()}: {policy} needs an order that tells what chunks are "
                        f"worth, and {self.order} does not; valid: by-energy"
                    )

    @property
    def needs_rate(self) -> bool:
        """Whether it sends at a rate that somebody must know, and measures none."""
        return self.carrier == "udp" and self.congestion_control.partition(":")[0] in NEED_RATE

    def policy(self, leg: Leg) -> TolerancePolicy:
        return self.gather if leg is Leg.GATHER else self.broadcast

    @property
    def compresses(self) -> str:
        """What it does to payloads, in words; none where they travel as they are."""
        if self.coding != "plain":
            return "sends two values of each chunk"
        return "" if self.keep == 1 else f"keeps {self.keep:g} of the chunks"

    @property
    def measures(self) -> bool:
        """Whether the congestion control measures the path; `udp` only."""
        return CONGESTION_CONTROLS.create(self.congestion_control, **_TYPICAL_LINK).measures

    def describe(self) -> dict[str, str]:
        """The configuration as texts, from which an equal one can be built."""
        # Runs were described without these, and are told apart by that.
        unsaid = {"keep": "1.0", "control": "tcp", "coding": "plain", "marks": NONE}
        texts = {entry.name: str(getattr(self, entry.name)) for entry in fields(self)}
        return {name: text for name, text in texts.items() if unsaid.get(name) != text}
