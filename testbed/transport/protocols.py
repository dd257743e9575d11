"""A protocol is a composition of the axes; presets give the published ones their names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Literal

from testbed.transport.congestion import CONGESTION_CONTROLS
from testbed.transport.order import ORDERS
from testbed.transport.repair import REPAIRS
from testbed.transport.tolerance import Fixed, Phased, TolerancePolicy, as_policy


class Leg(IntEnum):
    """The two directions of a round; a transfer's number is 2 * round + leg."""

    GATHER = 0  # worker to server
    BROADCAST = 1  # server to worker

    def transfer(self, round_index: int) -> int:
        """The number of this leg's transfer in round `round_index` (from 0)."""
        return 2 * round_index + self


@dataclass(frozen=True, kw_only=True)
class ProtocolConfig:
    """One protocol, completely described and checked.

    Attributes:
        name: what reports call it.
        carrier: `udp` for our own transport, `tcp` for the kernel's.
        gather, broadcast: how much each leg's receivers may give up; the constructor takes any
            form that `tolerance.as_policy` understands. Zero makes the leg reliable.
        repair: how what was lost is sent again; `udp` only.
        order: in which order chunks are sent; `udp` only.
        congestion_control: for `udp` one of ours with its options, for `tcp` the kernel's name
            of the algorithm, which is checked against the kernel when the endpoint opens.
    """

    name: str
    carrier: Literal["udp", "tcp"] = "udp"
    gather: TolerancePolicy = Fixed(0)  # noqa: RUF009 - immutable
    broadcast: TolerancePolicy = Fixed(0)  # noqa: RUF009 - immutable
    repair: str = "passes"
    order: str = "in-order"
    congestion_control: str = "fixed"

    def __post_init__(self) -> None:
        object.__setattr__(self, "gather", as_policy(self.gather))
        object.__setattr__(self, "broadcast", as_policy(self.broadcast))
        if self.carrier == "tcp":
            if any(self.policy(leg) != Fixed(0) for leg in Leg):
                raise ValueError(f"{self.name}: kernel TCP is reliable; its tolerances must be 0")
            if not self.congestion_control.isidentifier():
                raise ValueError(
                    f"{self.name}: congestion_control is {self.congestion_control!r}; "
                    "valid: the kernel's name of an algorithm, such as cubic"
                )
            return
        if self.carrier != "udp":
            raise ValueError(f"{self.name}: carrier is {self.carrier!r}; valid: udp, tcp")
        # Building each part once finds unknown names and options before any socket is opened.
        REPAIRS.create(self.repair)
        ORDERS.create(self.order)
        CONGESTION_CONTROLS.create(self.congestion_control, rate_bps=1e6, datagram_bytes=1472)

    def policy(self, leg: Leg) -> TolerancePolicy:
        """The tolerance policy of a leg."""
        return self.gather if leg is Leg.GATHER else self.broadcast

    def describe(self) -> dict[str, str]:
        """The configuration as texts from which an equal one can be built."""
        return {entry.name: str(getattr(self, entry.name)) for entry in fields(self)}


def _lossy(name: str, policy: TolerancePolicy, settings: Mapping[str, Any]) -> ProtocolConfig:
    return ProtocolConfig(**{"name": name, "gather": policy, "broadcast": policy, **settings})


def _dblp(*, low: float = 0.008, high: float = 0.408, **settings: Any) -> ProtocolConfig:
    """DBLP with its tolerances for EfficientNet-B0 (arXiv 2605.01989, Table I: P_low and k)."""
    return _lossy("dblp", Phased(low=low, high=high), settings)


def _fixed_low(*, tolerance: float = 0.008, **settings: Any) -> ProtocolConfig:
    """The paper's baseline: the same transport with P_low all the time."""
    return _lossy("fixed-low", Fixed(tolerance), settings)


def _fixed_high(*, tolerance: float = 0.408, **settings: Any) -> ProtocolConfig:
    """The control that the paper lacks: the same transport with P_high all the time."""
    return _lossy("fixed-high", Fixed(tolerance), settings)


def _tcp(*, congestion_control: str = "cubic", **settings: Any) -> ProtocolConfig:
    """The payload over one plain kernel TCP connection per peer."""
    return ProtocolConfig(
        **{
            "name": "tcp",
            "carrier": "tcp",
            "congestion_control": congestion_control,
            **settings,
        }
    )


PRESETS = {
    "dblp": (_dblp, ("low", "high")),
    "fixed-low": (_fixed_low, ("tolerance",)),
    "fixed-high": (_fixed_high, ("tolerance",)),
    "tcp": (_tcp, ()),
}


def preset(name: str, /, **overrides: Any) -> ProtocolConfig:
    """The published protocol called `name`, changed by `overrides`.

    Overrides are the preset's own parameters (`low` and `high` for dblp, `tolerance` for
    fixed-low and fixed-high) and the fields of ProtocolConfig. `tcp-cubic`, `tcp-bbr` and so on
    are `tcp` with that congestion control. Raises ValueError listing what is valid.
    """
    known, _, algorithm = name.partition("-")
    if known == "tcp" and algorithm and name not in PRESETS:
        return preset("tcp", **{"name": name, "congestion_control": algorithm, **overrides})
    if name not in PRESETS:
        raise ValueError(f"unknown protocol {name!r}; valid: {', '.join(PRESETS)}")
    build, parameters = PRESETS[name]
    valid = [*parameters, *(entry.name for entry in fields(ProtocolConfig))]
    for key in overrides:
        if key not in valid:
            raise ValueError(f"protocol {name!r} has no setting {key!r}; valid: {', '.join(valid)}")
    return build(**overrides)
