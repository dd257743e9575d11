"""The settings of delayed links, and the memory that a relay needs for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The smallest and the largest frame that a link carries, as its shaper counts them.
_SMALLEST_BITS, _LARGEST_BITS = 60 * 8, 1514 * 8
# No switch of a lab, nor a relay, moves more frames in a second, however small they are.
_MOST_FRAMES_PER_S = 250_000
# Beyond the frames in flight, a relay's memory holds three times those of the largest size that
# come in this time, so that a relay that wakes up late loses nothing.
_LATE_S, _LATE_MARGIN = 0.02, 3
# Where nothing says how long a delay may become, there is room for full-size frames for so long.
_ROOM_S = 0.25
_ROUNDED_SLOTS = 256
MOST_SLOTS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class DelaySettings:
    """One direction of a link."""

    # Each frame draws its wait evenly from `delay_s - jitter_s` to `delay_s + jitter_s`, and
    # overtakes none. So in a dense flow all wait for the slowest frame ahead: the mean grows
    # towards the largest.

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0

    @classmethod
    def of_link(cls, link: Mapping[str, Any]) -> DelaySettings:
        return cls(delay_s=link["delay_s"], jitter_s=link["jitter_s"], loss=link["loss"])

    def __post_init__(self) -> None:
        for name, most in (("delay_s", 10), ("jitter_s", 10), ("loss", 1)):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise ValueError(f"{name} {value!r}; valid: 0 to {most}")
        if self.jitter_s > self.delay_s:
            raise ValueError(
                f"jitter_s is {self.jitter_s:g} s, more than the {self.delay_s:g} s of delay_s: "
                f"some frames would have to wait less than 0 s; valid: up to {self.delay_s:g} s"
            )

    @property
    def longest_s(self) -> float:
        return self.delay_s + self.jitter_s


@dataclass(frozen=True, kw_only=True)
class Middle:
    """The inner ends of a link, for both its directions; direction i begins at `nodes[i]`.

    An `idle` middle passes frames untouched until its first change.
    """

    link: str
    nodes: tuple[str, str]
    interfaces: tuple[str, str]
    rate_bps: int | None
    settings: DelaySettings
    most_delay_s: float = 0.0
    idle: bool = False

    @property
    def longest_s(self) -> float:
        return max(self.settings.longest_s, self.most_delay_s)

    @property
    def slots(self) -> int:
        """Return the number of frames for which one direction needs memory."""
        # The smallest frames at the link's full rate, no more of them than a lab can move.
        rate_bps = self.rate_bps or 1_000_000_000
        smallest_per_s = min(rate_bps / _SMALLEST_BITS, _MOST_FRAMES_PER_S)
        late_s = _ROOM_S if self.idle else _LATE_MARGIN * _LATE_S
        late = rate_bps * late_s / _LARGEST_BITS
        steps = math.ceil((smallest_per_s * self.longest_s + late) / _ROUNDED_SLOTS)
        return min(MOST_SLOTS, max(1, steps) * _ROUNDED_SLOTS)

    @classmethod
    def of_link(cls, link: Mapping[str, Any]) -> Middle:
        settings, most_delay_s = DelaySettings.of_link(link), link.get("most_delay_s")
        return cls(
            link=link["name"],
            nodes=(link["first"]["node"], link["second"]["node"]),
            interfaces=(link["middle"][0], link["middle"][1]),
            rate_bps=link["rate_bps"],
            settings=settings,
            most_delay_s=most_delay_s or 0.0,
            idle=settings == DelaySettings() and most_delay_s is None,
        )

    def require_room(self, longest_s: float, rate_bps: int | None = None) -> None:
        """Check that full-size frames at the link's full rate fit into a relay's memory."""
        frames_per_s = max(self.rate_bps or 0, rate_bps or 0) / _LARGEST_BITS
        if frames_per_s * longest_s > self.slots:
            raise ValueError(
                f"link {self.link}: a delay of {longest_s:g} s at "
                f"{frames_per_s * _LARGEST_BITS / 1e6:g} Mbit/s does not fit into the relay's "
                f"memory, which holds {self.slots} frames; valid: up to "
                f"{self.slots / frames_per_s:.3f} s"
            )

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Middle:
        """Read what `asdict` made, sent as JSON in the relay's first request."""
        pairs = {name: tuple(fields[name]) for name in ("nodes", "interfaces")}
        return cls(**{**fields, **pairs, "settings": DelaySettings(**fields["settings"])})
