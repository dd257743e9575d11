"""The settings of delayed links, and the counters that netem or the relay report of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# A relay's memory holds this many times the frames that a link's rate brings in twice its delay,
# but at least in this time, so that a relay that wakes up late loses nothing.
_FRAMES_MARGIN = 3
_LEAST_HELD_S = 0.02
_FRAME_BITS = 1514 * 8
LEAST_SLOTS, MOST_SLOTS = 256, 1 << 16


@dataclass(frozen=True, kw_only=True)
class DelaySettings:
    """One direction of a link.

    Attributes:
        delay_s: the time that every frame waits.
        jitter_s: each frame waits up to this much less or more, evenly distributed, but never
            less than 0 s. No frame overtakes another, so in a dense flow all wait for the
            slowest frame ahead of them.
        loss: share of frames that vanish, each independently of all others.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0

    @classmethod
    def of_link(cls, link: Mapping[str, Any]) -> DelaySettings:
        """The settings of a link in the lab's description."""
        return cls(delay_s=link["delay_s"], jitter_s=link["jitter_s"], loss=link["loss"])

    def __post_init__(self) -> None:
        for name, most in (("delay_s", 10), ("jitter_s", 10), ("loss", 1)):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise ValueError(f"{name} {value!r}; valid: 0 to {most}")


@dataclass(frozen=True, kw_only=True)
class Middle:
    """The inner ends of a link, for both its directions.

    Attributes:
        link: the link's name, "a--b".
        nodes: its ends' names; direction i begins at nodes[i].
        interfaces: the inner interface next to each of them.
        rate_bps: the link's shaped rate, the most that arrives; None if it is not shaped.
        settings: of both directions to begin with.
    """

    link: str
    nodes: tuple[str, str]
    interfaces: tuple[str, str]
    rate_bps: int | None
    settings: DelaySettings

    @property
    def slots(self) -> int:
        """The frames for which one direction needs memory."""
        held_s = max(2 * (self.settings.delay_s + self.settings.jitter_s), _LEAST_HELD_S)
        wanted = _FRAMES_MARGIN * (self.rate_bps or 1_000_000_000) * held_s / _FRAME_BITS
        return min(MOST_SLOTS, max(LEAST_SLOTS, 1 << max(0, int(wanted) - 1).bit_length()))

    @classmethod
    def of_link(cls, link: Mapping[str, Any]) -> Middle:
        """The middle of a delayed link in the lab's description."""
        return cls(
            link=link["name"],
            nodes=(link["first"]["node"], link["second"]["node"]),
            interfaces=(link["middle"][0], link["middle"][1]),
            rate_bps=link["rate_bps"],
            settings=DelaySettings.of_link(link),
        )

    def require_room(self, settings: DelaySettings) -> None:
        """Check that the frames in flight with other settings fit into the memory.

        Raises:
            ValueError: it does not.
        """
        held_s = settings.delay_s + settings.jitter_s
        if self.rate_bps is not None and self.rate_bps * held_s / _FRAME_BITS > self.slots:
            most_s = self.slots * _FRAME_BITS / self.rate_bps
            raise ValueError(
                f"link {self.link}: a delay of {held_s:g} s does not fit into the relay's memory, "
                f"which was made for {self.settings.delay_s:g} s; valid: up to {most_s:.3f} s"
            )

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Middle:
        """What `asdict` made, sent as JSON in the relay's first request."""
        pairs = {name: tuple(fields[name]) for name in ("nodes", "interfaces")}
        return cls(**{**fields, **pairs, "settings": DelaySettings(**fields["settings"])})


@dataclass(frozen=True, kw_only=True)
class DirectionCounters:
    """Frames of one direction since the start: arrived = left + dropped + lost + in flight.

    Attributes:
        link, sender: the directed link, from this end on.
        frames_in: arrived from the sender's end.
        frames_out: handed to the other end.
        dropped: by accident: no memory was left, or the other end refused.
        lost: by the configured loss.
    """

    link: str
    sender: str
    frames_in: int
    frames_out: int
    dropped: int
    lost: int


def directed(counters: DirectionCounters) -> dict[str, Any]:
    """Counters as written to logs and samples, where a directed link is {link, from}."""
    fields = asdict(counters)
    return {"link": fields.pop("link"), "from": fields.pop("sender"), **fields}


@dataclass(frozen=True, kw_only=True)
class RelayReport:
    """How well a relay did its work.

    Attributes:
        scheduling: the priority it got: "fifo" (ahead of all ordinary processes), "nice",
            "short-slice" or "ordinary".
        cpu_s, wall_s: processor time and time since the start.
        late_p50_s, late_p99_s, late_max_s: how long after their due time frames left.
        directions: counters.
    """

    scheduling: str
    cpu_s: float
    wall_s: float
    late_p50_s: float
    late_p99_s: float
    late_max_s: float
    directions: list[DirectionCounters]

    @property
    def dropped(self) -> int:
        """Frames that it should have delivered and did not, over all directions."""
        return sum(each.dropped for each in self.directions)

    def as_json(self) -> dict[str, Any]:
        """The record in `delay.json`; directed links as {link, from}."""
        return asdict(self) | {"directions": [directed(each) for each in self.directions]}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RelayReport:
        """What `as_json` made."""
        directions = []
        for each in document["directions"]:
            fields = dict(each)
            directions.append(DirectionCounters(sender=fields.pop("from"), **fields))
        return cls(**{**document, "directions": directions})
